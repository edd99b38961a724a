"""What a sibling does about the queries that a dead worker has left: it cancels them, as far as that can be done."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from helpers.waiting import until
from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.orphans import Orphans
from pgtrunk_gateway.pool.target import Target

CANCEL: Final = b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x071234"


class Postgres:
    """It hears cancels, and hangs up when it is told to."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.hangs_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(await reader.read(100))
        await self.hangs_up.wait()
        writer.close()


@pytest_asyncio.fixture
async def supervisor() -> AsyncIterator[Bus]:
    """The supervisor's end of a bus, at whose other end is a worker that knows the database `shop` alone."""
    ours, theirs = socket.socketpair()
    here, there = Bus("worker 0"), Bus("the supervisor")
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: here, sock=ours)
    await loop.create_unix_connection(lambda: there, sock=theirs)

    def target(database: str, user: str) -> Target | None:
        return Target(host="elsewhere.invalid", port=1, dbname=database, user=user) if database == "shop" else None

    Orphans(there, target, tune=lambda _: None)
    yield here
    for bus in (here, there):
        bus.close()
        await bus.wait_closed()


def opened(host: str, port: int, database: str = "shop") -> dict[str, Any]:
    return {"id": 1, "pool": [database, "app"], "host": host, "port": port, "pid": 7, "secret": b"1234".hex()}


async def ask(supervisor: Bus, *several: dict[str, Any], timeout: float = 20.0) -> None:
    await supervisor.ask("orphans", {"opened": several, "timeout": timeout}, timeout=30)


@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_they_are_cancelled_where_they_are_and_waited_for(supervisor: Bus, tmp_path: Path, way: str) -> None:
    postgres = Postgres()
    if way == "tcp":
        server = await asyncio.start_server(postgres.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
    else:
        host, port = str(tmp_path), 5432
        server = await asyncio.start_unix_server(postgres.serve, tmp_path / ".s.PGSQL.5432")
    async with server:
        task = asyncio.create_task(ask(supervisor, opened(host, port), opened(host, port)))
        await until(lambda: postgres.heard == [CANCEL] * 2)
        assert not task.done()
        postgres.hangs_up.set()
        await task


async def test_what_cannot_be_cancelled_holds_up_nothing_else(
    supervisor: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    postgres = Postgres()
    postgres.hangs_up.set()
    silent = Postgres()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    async with (
        await asyncio.start_server(postgres.serve, "127.0.0.1", 0) as server,
        await asyncio.start_server(silent.serve, "127.0.0.1", 0) as other,
    ):
        several = [
            opened("127.0.0.1", nobody),
            opened("127.0.0.1", other.sockets[0].getsockname()[1]),
            opened("127.0.0.1", 1, "gone"),
            opened("127.0.0.1", server.sockets[0].getsockname()[1]),
        ]
        await ask(supervisor, *several, timeout=0.2)
        assert postgres.heard == silent.heard == [CANCEL]
        silent.hangs_up.set()
    assert "cancelled what a worker has left in the server: 1 of 4 connections" in caplog.text


async def test_nothing_is_left_of_it_when_the_bus_ends(supervisor: Bus) -> None:
    postgres = Postgres()
    async with await asyncio.start_server(postgres.serve, "127.0.0.1", 0) as server:
        task = asyncio.create_task(ask(supervisor, opened("127.0.0.1", server.sockets[0].getsockname()[1])))
        await until(lambda: postgres.heard)
        supervisor.close()
        with pytest.raises(GatewayError):
            await task
        postgres.hangs_up.set()
