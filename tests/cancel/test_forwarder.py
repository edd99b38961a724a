"""Forwarding to peers: what is sent, how many at a time, and until when the client waits."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.cancel_server import cancel_server
from helpers.waiting import until
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.forwarder import Forwarder
from pgtrunk_gateway.cancel.keys import forwarded, mint
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.cancel.peer import Peer
from pgtrunk_gateway.pool.target import Target

KEY = mint(2, bytes(8))
REQUEST = CancelRequest(KEY.pid, KEY.secret)
TOLD = CancelRequest(KEY.pid, forwarded(KEY.secret)).encode()


def _ignore(*_: Any) -> None: ...


def forwarder(timeout: float = 10.0) -> Forwarder:
    return Forwarder(timeout=timeout, tune=_ignore)


def peer(port: int, size: int = 0, host: str = "127.0.0.1") -> Peer:
    return Peer(2, Target(host=host, port=port, dbname="", user=""), size)


def numbers(forwards: Forwarder) -> tuple[int, int, int]:
    lane = forwards.lanes[2]
    return lane.waiting, lane.connecting, lane.told


async def outcome(task: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(20):
        return await task


async def test_the_clients_key_goes_on_with_one_hop_less_until_the_peer_hangs_up() -> None:
    forwards = forwarder()
    async with cancel_server() as server:
        task = forwards.start(peer(server.port), REQUEST)
        async with asyncio.timeout(10):
            await server.arrived.wait()
        assert server.requests == [TOLD]
        # 16 octets, as PgBouncer has them, with 2 where its client showed 3.
        assert bytes.fromhex("00000010 04d2162e 00020000 00000002") == TOLD
        assert numbers(forwards) == (0, 0, 1)
        assert not task.done()
        server.may_close.set()
        assert await outcome(task) is Outcome.FORWARDED
    assert numbers(forwards) == (0, 0, 0)
    assert len(forwards) == 0


async def test_a_long_key_is_followed_by_its_hops() -> None:
    forwards = forwarder()
    key = mint(2, os.urandom(36))
    async with cancel_server() as server:
        server.may_close.set()
        assert await outcome(forwards.start(peer(server.port), CancelRequest(key.pid, key.secret))) is Outcome.FORWARDED
    assert server.requests == [CancelRequest(key.pid, key.secret + b"\2").encode()]


async def test_a_unix_socket(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(100))
        writer.close()

    forwards = forwarder()
    async with await asyncio.start_unix_server(serve, tmp_path / ".s.PGSQL.6432"):
        assert await outcome(forwards.start(peer(6432, host=str(tmp_path)), REQUEST)) is Outcome.FORWARDED
    assert seen == [TOLD]


async def test_no_more_than_pool_size_at_a_time() -> None:
    forwards = forwarder()
    async with cancel_server() as server:
        there = peer(server.port, size=3)
        tasks = [forwards.start(there, REQUEST) for _ in range(20)]
        await until(lambda: len(server.requests) == 3)
        assert numbers(forwards) == (17, 0, 3)
        forwards.configure(timeout=10.0, peers={2: replace(there, size=5)})
        await until(lambda: len(server.requests) == 5)
        assert numbers(forwards) == (15, 0, 5)
        server.may_close.set()
        assert [await outcome(task) for task in tasks] == [Outcome.FORWARDED] * 20
        assert server.most <= 5
    assert (len(server.requests), numbers(forwards)) == (20, (0, 0, 0))


async def test_a_peer_that_does_not_hang_up() -> None:
    """Those behind it were not told of: that is another outcome."""
    forwards = forwarder(timeout=0.1)
    async with cancel_server() as server:
        tasks = [forwards.start(peer(server.port, size=1), REQUEST) for _ in range(3)]
        told = [await outcome(task) for task in tasks]
    assert told == [Outcome.UNCONFIRMED, Outcome.FAILED, Outcome.FAILED]
    assert numbers(forwards) == (0, 0, 0)


async def test_a_peer_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    forwards = forwarder()
    async with cancel_server() as server:
        port = server.port
    assert await outcome(forwards.start(peer(port), REQUEST)) is Outcome.FAILED
    assert f"peer 2: cancel request failed: cannot connect to the server at 127.0.0.1:{port}" in caplog.text
    assert "secret" not in caplog.text


async def test_a_peer_that_says_something() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"E" * 1000)
        await writer.drain()
        writer.close()

    forwards = forwarder()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await outcome(forwards.start(peer(port), REQUEST)) is Outcome.FORWARDED


async def test_a_peer_that_is_none_any_more() -> None:
    """What it has been told goes on, and what waited for room does not wait for ever."""
    forwards = forwarder()
    async with cancel_server() as server:
        tasks = [forwards.start(peer(server.port, size=1), REQUEST) for _ in range(5)]
        await until(lambda: len(server.requests) == 1)
        forwards.configure(timeout=10.0, peers={})
        assert forwards.lanes == {}
        await until(lambda: len(server.requests) == 5)
        server.may_close.set()
        assert [await outcome(task) for task in tasks] == [Outcome.FORWARDED] * 5


@pytest.mark.parametrize("steps", range(6))
async def test_one_that_is_given_up_at_any_moment_leaves_room(steps: int) -> None:
    forwards = forwarder()
    async with cancel_server() as server:
        task = forwards.start(peer(server.port, size=1), REQUEST)
        for _ in range(steps):
            await asyncio.sleep(0)
        if steps == 5:
            await until(lambda: server.requests)
        task.cancel()
        await asyncio.wait([task])
        assert numbers(forwards) == (0, 0, 0)
        # For the server to see whatever has come.
        await asyncio.sleep(0.01)
        server.may_close.set()


async def test_a_fault_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def connect(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Peer, "connect", connect)
    forwards = forwarder()
    task = forwards.start(peer(1), REQUEST)
    await asyncio.wait([task])
    await until(lambda: not len(forwards))
    assert "ZeroDivisionError" in caplog.text
    assert numbers(forwards) == (0, 0, 0)
