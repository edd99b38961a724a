"""Carrying cancels to a server: what is sent, when, and until when the backend is held for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helpers.transports import FakeTransport
from helpers.waiting import until
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.dispatch import Dispatcher
from pgtrunk_gateway.pool.backend import Backend
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared

KEY = BackendKeyData(4711, b"\1\2\3\4")


class CancelServer:
    """Takes cancel requests, and closes their connections when the test says so."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.may_close = asyncio.Event()
        self.port = 0
        self.serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.read(100))
            self.arrived.set()
            await self.may_close.wait()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def cancel_server() -> AsyncIterator[CancelServer]:
    held = CancelServer()
    server = await asyncio.start_server(held.accept, "127.0.0.1", 0)
    held.port = server.sockets[0].getsockname()[1]
    try:
        yield held
    finally:
        held.may_close.set()
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(10):
            await asyncio.gather(*held.serving, return_exceptions=True)


class Session:
    def __init__(self, backend: Backend | None) -> None:
        self.backend = backend
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def running_backend(port: int, key: BackendKeyData | None = KEY) -> Backend:
    target = Target(host="127.0.0.1", port=port, dbname="d", user="u")
    replies = Replies(Prepared(10), {})
    backend = Backend(FakeTransport(), target, key, replies, on_free=_ignore, on_lost=_ignore)
    replies.push(owed.QUERY)
    return backend


def _ignore(*_: Any) -> None: ...


def dispatcher(timeout: float = 10.0) -> Dispatcher:
    return Dispatcher(peer_id=0, random=os.urandom, timeout=timeout, tune=_ignore)


async def test_the_servers_own_key_is_sent_and_the_backend_held_until_it_hangs_up() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        key = cancels.register(Session(backend))
        serving = asyncio.ensure_future(cancels.serve(CancelRequest(key.pid, key.secret)))
        async with asyncio.timeout(10):
            await server.arrived.wait()
        assert server.requests == [CancelRequest(4711, b"\1\2\3\4").encode()]
        assert backend.cancels == 1
        assert not serving.done()
        server.may_close.set()
        async with asyncio.timeout(10):
            await serving
    assert backend.cancels == 0
    assert (cancels.sent, cancels.ignored, len(cancels)) == (1, 0, 0)


async def test_a_wrong_key_and_an_idle_session_do_nothing() -> None:
    cancels = dispatcher()
    idle = Session(None)
    key = cancels.register(idle)
    await cancels.serve(CancelRequest(key.pid, b"nope"))
    assert (idle.cancelled, cancels.ignored) == (0, 1)
    await cancels.serve(CancelRequest(key.pid, key.secret))
    assert idle.cancelled == 1
    async with cancel_server() as server:
        quiet = running_backend(server.port)
        quiet.replies.queue.clear()
        key = cancels.register(Session(quiet))
        await cancels.serve(CancelRequest(key.pid, key.secret))
        assert server.requests == []
    assert quiet.cancels == 0


@pytest.mark.parametrize("overtaken", ["by its answer", "by the end of the lease"])
async def test_a_cancel_that_the_end_of_its_query_overtakes_is_not_sent(overtaken: str) -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        cancels.cancel(backend)
        assert backend.cancels == 1
        if overtaken == "by its answer":
            backend.replies.queue.clear()
        else:
            backend.lease += 1
        await until(lambda: not backend.cancels)
        server.may_close.set()
    assert b"".join(server.requests) == b""
    assert (cancels.sent, cancels.ignored) == (0, 1)


async def test_a_server_that_never_hangs_up_does_not_hold_a_backend_for_ever() -> None:
    cancels = dispatcher(timeout=0.05)
    async with cancel_server() as server:
        backend = running_backend(server.port)
        cancels.cancel(backend)
        await until(lambda: not len(cancels))
    assert backend.cancels == 0


async def test_a_server_that_is_gone_and_one_that_gave_no_key() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        port = server.port
    gone, keyless = running_backend(port), running_backend(port, key=None)
    for backend in (gone, keyless):
        cancels.cancel(backend)
    await until(lambda: not (gone.cancels or keyless.cancels))
    assert cancels.sent == 0


async def test_closing_ends_what_is_under_way() -> None:
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        cancels.cancel(backend)
        async with asyncio.timeout(10):
            await server.arrived.wait()
        await cancels.close()
        assert backend.cancels == 0
        assert len(cancels) == 0


async def test_a_cancel_waits_while_settings_are_made() -> None:
    """What is cancelled is the request behind them: without them it would run under others."""
    cancels = dispatcher()
    async with cancel_server() as server:
        backend = running_backend(server.port)
        backend.replies.queue.appendleft(owed.Applying(""))
        cancels.cancel(backend)
        await asyncio.sleep(0.05)
        assert cancels.sent == 0
        backend.replies.queue.popleft()
        async with asyncio.timeout(10):
            await server.arrived.wait()
        backend.replies.queue.clear()
        server.may_close.set()
        await until(lambda: not backend.cancels)
    assert cancels.sent == 1
    await cancels.close()
