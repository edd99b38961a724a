"""When a connection to Postgres has ended: behind Terminate, cut off, given up, and at the end of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from helpers.waiting import until
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk.wire.frontend import TERMINATE_MESSAGE
from pgtrunk_gateway.pool import parting as parting_module
from pgtrunk_gateway.pool.backend import Backend
from pgtrunk_gateway.pool.parting import Parting
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared


class Postgres:
    """A server that keeps what connects to it open until it is told otherwise, and notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.target: Target

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.heard)
        self.heard.append(b"")
        self.writers.append(writer)
        try:
            while data := await reader.read(1000):
                self.heard[at] += data
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def backend(self, parting: Parting, gone: Callable[[], None], *, key: bool = True) -> Backend:
        """A connection, as a pool has it."""
        loop = asyncio.get_running_loop()

        def lost(backend: Backend, reason: str) -> None:
            parting.part(backend, gone)

        count = len(self.writers)
        transport, _ = await loop.create_connection(asyncio.Protocol, self.target.host, self.target.port)
        secret = BackendKeyData(7, b"1234") if key else None
        replies = Replies(Prepared(0), {})
        backend = Backend(transport, self.target, secret, replies, on_free=lambda _: None, on_lost=lost)
        backend.lingers = True
        transport.set_protocol(backend)
        await until(lambda: len(self.writers) > count)
        return backend


@pytest_asyncio.fixture
async def postgres() -> AsyncIterator[Postgres]:
    postgres = Postgres()
    server = await asyncio.start_server(postgres.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    postgres.target = Target(host=host, port=port, dbname="shop", user="app")
    yield postgres
    for writer in postgres.writers:
        writer.close()
    server.close()
    await server.wait_closed()


@pytest_asyncio.fixture
async def parting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parting]:
    monkeypatch.setattr(parting_module, "EXIT", 0.01)
    parting = Parting(lambda _: None)
    yield parting
    await parting.close()


class Gone:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def test_behind_terminate_it_is_gone_when_the_server_has_hung_up(postgres: Postgres, parting: Parting) -> None:
    gone = Gone()
    backend = await postgres.backend(parting, gone)
    backend.close("server idle timeout")
    await until(lambda: postgres.heard == [TERMINATE_MESSAGE])
    await asyncio.sleep(0.05)
    assert (gone.count, len(parting)) == (0, 1)
    # What it says before is of no interest to anybody.
    postgres.writers[0].write(b"N\0\0\0\4")
    postgres.writers[0].close()
    await until(lambda: gone.count)
    assert (gone.count, len(parting)) == (1, 0)


async def test_what_the_server_has_ended_is_gone_at_once(postgres: Postgres, parting: Parting) -> None:
    gone = Gone()
    await postgres.backend(parting, gone)
    postgres.writers[0].close()
    await until(lambda: gone.count)
    assert len(postgres.heard) == 1


async def test_what_is_cut_off_is_cancelled_and_gone_when_the_server_has_heard_of_it(
    postgres: Postgres, parting: Parting
) -> None:
    gone = Gone()
    backend = await postgres.backend(parting, gone)
    backend.drop("client vanished")
    await until(lambda: len(postgres.heard) == 2 and postgres.heard[1])
    assert postgres.heard[1] == b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x071234"
    await asyncio.sleep(0.05)
    assert gone.count == 0
    postgres.writers[1].close()
    await until(lambda: gone.count)


async def test_what_cannot_be_cancelled_gets_a_moment(postgres: Postgres, parting: Parting) -> None:
    gone = Gone()
    backend = await postgres.backend(parting, gone, key=False)
    backend.drop("client vanished")
    parting.unopened(gone)
    assert gone.count == 0
    await until(lambda: gone.count == 2)
    assert len(postgres.heard) == 1


@pytest.mark.parametrize("end", ["close", "drop"])
async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(
    postgres: Postgres, parting: Parting, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(parting_module, "_PATIENCE", 0.05)
    gone = Gone()
    backend = await postgres.backend(parting, gone)
    getattr(backend, end)("over")
    await until(lambda: gone.count)
    assert (gone.count, len(parting)) == (1, 0)


@pytest.mark.parametrize("end", ["close", "drop"])
async def test_the_end_of_the_gateway_leaves_nothing(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(parting_module, "_LAST", 0.05)
    gone = Gone()
    parting = Parting(lambda _: None)
    backend = await postgres.backend(parting, gone)
    getattr(backend, end)("over")
    parting.unopened(gone)
    await parting.close()
    assert len(parting) == 0
    await until(lambda: backend.transport.is_closing())
