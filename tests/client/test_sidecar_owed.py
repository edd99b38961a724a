"""When a driver's session is at rest, and what may have left of what it asked for since."""

from __future__ import annotations

import pytest

from pgtrunk.sidecar.messages import Answers
from pgtrunk.sidecar.owed import Owed
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import encode
from pgtrunk.wire.startup import StartupMessage

STARTUP = StartupMessage(parameters={"user": "app"}).encode()
LOGIN = backend.authentication_ok() + backend.backend_key_data(42, b"1234") + backend.ready()
IDLE, OPEN = backend.ready(), backend.ready(b"T")
QUERY = frontend.query(b"insert")
EXECUTE = frontend.bind(b"", b"") + frontend.execute()
PARSE = frontend.parse(b"", b"insert")
SYNC = frontend.SYNC_MESSAGE
DONE = backend.command_complete("INSERT 0 1")
COPY_IN = encode(b"G", b"\0\0\0")
COPY_BOTH = encode(b"W", b"\0\0\0")
DATA = frontend.copy_data(b"1\n" * 100)


class Line:
    """Both ways of a session, said in pieces of ``size`` octets."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.size = size
        self.owed = Owed()
        self.owed.begin(len(STARTUP))
        self.answers = Answers(self.owed)

    def play(self, *said: str | bytes) -> Line:
        """Turns of driver and gateway: a ">" is before what the driver says."""
        asks = False
        for each in said:
            if isinstance(each, str):
                asks = each == ">"
                continue
            for at in range(0, len(each), self.size):
                (self.owed.asked if asks else self.answers.feed)(each[at : at + self.size])
        return self

    @property
    def rests(self) -> bool:
        return not self.owed.has_left(self.owed.written)


SAFE: dict[str, tuple[str | bytes, ...]] = {
    "a login": (">", STARTUP, frontend.password(b"x")),
    "logged in": (">", STARTUP, "<", LOGIN),
    "a query answered": (">", STARTUP, "<", LOGIN, ">", QUERY, "<", DONE, IDLE),
    "in a transaction": (">", STARTUP, "<", LOGIN, ">", QUERY, "<", DONE, OPEN),
    "extended": (">", STARTUP, "<", LOGIN, ">", PARSE, EXECUTE, SYNC, "<", DONE, IDLE),
    "described first": (">", STARTUP, "<", LOGIN, ">", PARSE, frontend.FLUSH_MESSAGE, "<", encode(b"1"), ">", EXECUTE,
                        SYNC, "<", DONE, IDLE),
    "a pipeline answered": (">", STARTUP, "<", LOGIN, ">", QUERY, EXECUTE, SYNC, QUERY, "<", DONE, IDLE, IDLE, IDLE),
    "copied by a query": (">", STARTUP, "<", LOGIN, ">", QUERY, "<", COPY_IN, ">", DATA, DATA, encode(b"c"), "<", DONE,
                          IDLE),
    "copied, extended": (">", STARTUP, "<", LOGIN, ">", PARSE, EXECUTE, SYNC, "<", COPY_IN, ">", DATA, encode(b"c"),
                         SYNC, "<", DONE, IDLE),
    "copied, flushed": (">", STARTUP, "<", LOGIN, ">", EXECUTE, frontend.FLUSH_MESSAGE, "<", COPY_IN, ">", DATA,
                        encode(b"c"), SYNC, "<", DONE, IDLE),
    "a function called": (">", STARTUP, "<", LOGIN, ">", encode(b"F", b"x"), "<", IDLE),
}  # fmt: skip

UNSAFE: dict[str, tuple[str | bytes, ...]] = {
    "a query with the login": (">", STARTUP, QUERY),
    "a query with the login, that runs": (">", STARTUP, QUERY, "<", LOGIN),
    "a query": (">", STARTUP, "<", LOGIN, ">", QUERY),
    "a part of one": (">", STARTUP, "<", LOGIN, ">", QUERY[:7]),
    "a part of a header": (">", STARTUP, "<", LOGIN, ">", QUERY[:3]),
    "rows that look like an end": (">", STARTUP, "<", LOGIN, ">", QUERY, "<", backend.data_row([IDLE])),
    "a pipeline, in part": (">", STARTUP, "<", LOGIN, ">", QUERY, QUERY, "<", DONE, IDLE),
    "no Sync yet": (">", STARTUP, "<", LOGIN, ">", PARSE, EXECUTE, "<", DONE),
    "a batch behind one that is answered": (">", STARTUP, "<", LOGIN, ">", EXECUTE, SYNC, EXECUTE, "<", DONE, IDLE),
    "in a COPY": (">", STARTUP, "<", LOGIN, ">", QUERY, "<", COPY_IN, ">", DATA),
    "in an extended COPY": (">", STARTUP, "<", LOGIN, ">", EXECUTE, SYNC, "<", COPY_IN, ">", DATA),
    "an extended COPY done": (">", STARTUP, "<", LOGIN, ">", EXECUTE, SYNC, "<", COPY_IN, ">", DATA, encode(b"c")),
    "an extended COPY synced": (">", STARTUP, "<", LOGIN, ">", EXECUTE, SYNC, "<", COPY_IN, ">", DATA, encode(b"c"),
                                SYNC),
    "a COPY in a pipeline": (">", STARTUP, "<", LOGIN, ">", EXECUTE, SYNC, QUERY, "<", COPY_IN, ">", encode(b"c"), "<",
                             IDLE, IDLE, IDLE),
    "replication": (">", STARTUP, "<", LOGIN, ">", QUERY, "<", COPY_BOTH, ">", DATA),
    "no Postgres": (">", STARTUP, "<", LOGIN, ">", b"GET / HTTP/1.1\r\n\r\n", "<", IDLE),
    "more answers than questions": (">", STARTUP, "<", LOGIN, IDLE),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1 << 20])
@pytest.mark.parametrize("said", SAFE.values(), ids=SAFE)
def test_at_rest(said: tuple[str | bytes, ...], size: int) -> None:
    assert Line(size).play(*said).rests


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1 << 20])
@pytest.mark.parametrize("said", UNSAFE.values(), ids=UNSAFE)
def test_not_at_rest(said: tuple[str | bytes, ...], size: int) -> None:
    assert not Line(size).play(*said).rests


@pytest.mark.parametrize("before", [(), ("<", LOGIN), ("<", LOGIN, ">", QUERY, "<", DONE, OPEN)])
@pytest.mark.parametrize("request_", [QUERY, PARSE + EXECUTE + SYNC, PARSE])
def test_what_never_left_is_not_at_stake(before: tuple[str | bytes, ...], request_: bytes) -> None:
    line = Line().play(">", STARTUP, *before)
    rested = line.owed.written
    line.play(">", request_)
    assert not line.owed.has_left(rested)
    assert line.owed.has_left(rested + 1)


def test_the_status_is_that_of_the_last_answer() -> None:
    line = Line().play(">", STARTUP, "<", LOGIN)
    assert not line.owed.in_transaction
    for status, expected in ((b"T", True), (b"E", True), (b"I", False)):
        line.play(">", QUERY, "<", backend.ready(status))
        assert line.owed.in_transaction is expected
