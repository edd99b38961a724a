"""Servers that are asked what a session has left on them: PostgreSQL 18, 15, and the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import pytest

from helpers.postgres_model import PostgresModel
from helpers.raw_postgres import RawConnection
from helpers.transcript import transcript
from pgtrunk.wire.framing import messages
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.session.inquiry import Inquiry, inquire
from pgtrunk_gateway.session.owed import Asking
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.sql.traces import Pin, Traces
from pgtrunk_gateway.session.statements import Prepared

if TYPE_CHECKING:
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres
    from pgtrunk_gateway.session.inquiry import Answer

__all__ = [
    "Connected", "Connection", "Modelled", "answer_to", "ask", "connect", "connection",
    "exchange", "run", "server", "sets",
]  # fmt: skip


def sets(*names: str) -> Traces:
    """The traces of setting these."""
    return Traces(frozenset(names))


class Modelled:
    """The model, in the place of a connection."""

    def __init__(self) -> None:
        self.model = PostgresModel(settings={"session_authorization": "user"})
        self.user = "user"
        self.parameters = self.model.reported
        self._data = b""

    def send(self, data: bytes) -> None:
        self._data += self.model.feed(data)

    def read(self, count: int) -> bytes:
        end = [end for _, _, end in messages(self._data)][count - 1]
        read, self._data = self._data[:end], self._data[end:]
        return read

    def close(self) -> None: ...


class Connected:
    """A connection to a real one, as its superuser."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._connection = RawConnection(server, "postgres")
        self.user = server.user
        self.parameters = dict(self._connection.handshake.parameters)
        self.send, self.read = self._connection.send, self._connection.read

    def close(self) -> None:
        self._connection.__exit__()


Connection = Modelled | Connected


def _server(version: str, request: pytest.FixtureRequest) -> EmbeddedPostgres:
    return cast("EmbeddedPostgres", request.getfixturevalue("postgres" if version == "18" else "debian"))


@pytest.fixture(params=["18", "15"])
def server(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    return _server(request.param, request)


@pytest.fixture
def connect(server: EmbeddedPostgres) -> Iterator[Callable[[], Connected]]:
    """Opens connections to a real server."""
    opened: list[Connected] = []

    def connect() -> Connected:
        opened.append(Connected(server))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture(params=["18", "15", "model"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """One to each server in turn, and to the model."""
    connection = Modelled() if request.param == "model" else Connected(_server(request.param, request))
    yield connection
    connection.close()


def run(connection: Connection, *texts: str) -> list[str]:
    """What the server says to each query, but for notices."""
    told: list[str] = []
    for text in texts:
        connection.send(query(text.encode()))
        answers = b""
        while answers[-6:-1] != b"Z\0\0\0\5":
            answers += connection.read(1)
        told += [line for line in transcript(answers) if not line.startswith(("Notice", "Parameter"))]
    return told


def ask(
    connection: Connection, touched: Traces, *, pins: Pin = Pin.NONE, patient: bool = False, fails: bool = False
) -> Answer | None:
    """What comes of the inquiry after ``touched``."""
    inquiry = inquire(touched, {}, connection.parameters, pins=pins, login=connection.user)
    assert inquiry is not None
    replies = exchange(connection, inquiry, patient=patient)
    assert replies.failed_inquiry is fails
    return replies.answer


def answer_to(connection: Connection, inquiry: Inquiry) -> Answer:
    """What is told."""
    answer = exchange(connection, inquiry).answer
    assert answer is not None
    return answer


def exchange(connection: Connection, inquiry: Inquiry, *, patient: bool = False) -> Replies:
    """What the reply side notes of it."""
    replies = Replies(Prepared(10), dict(connection.parameters))
    replies.push(Asking(inquiry))
    connection.send(query(inquiry.patient_sql if patient else inquiry.sql))
    while replies.queue:
        assert replies.feed(connection.read(1)) == b""
    assert replies.in_step
    return replies
