"""A console without a gateway: operations that record what is asked of them, and a client on a fake transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from helpers.lobby import Lobby
from helpers.transports import FakeTransport
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.config.load import Loaded
from pgtrunk_gateway.config.reading import Reading
from pgtrunk_gateway.console.console import Console
from pgtrunk_gateway.pool.pools import Pools
from pgtrunk_gateway.relay.session import Session

if TYPE_CHECKING:
    from pgtrunk_gateway.console.operations import PoolerState
    from pgtrunk_gateway.console.session import ConsoleSession

__all__ = ["FakeOperations", "Room", "Visitor", "cells", "error", "kinds", "notices", "rows", "tags"]


class FakeOperations:
    """The gateway, as the console's verbs see it. ``gate`` is what the verbs that wait wait for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.state: PoolerState = "active"
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.remarks: list[str] = []

    def _ask(self, *words: Any) -> None:
        self.asked.append(words)
        if self.error is not None:
            raise self.error

    async def _wait(self, *words: Any) -> None:
        self._ask(*words)
        await self.gate.wait()

    async def reload(self) -> None:
        self._ask("reload")

    def set(self, key: str, value: str) -> None:
        self._ask("set", key, value)

    async def pause(self, database: str | None) -> None:
        self.state = "paused"
        await self._wait("pause", database)

    def resume(self, database: str | None) -> None:
        self._ask("resume", database)
        self.state = "active"

    async def suspend(self) -> None:
        self.state = "suspended"
        await self._wait("suspend")

    def disable(self, database: str) -> None:
        self._ask("disable", database)

    def enable(self, database: str) -> None:
        self._ask("enable", database)

    def reconnect(self, database: str | None) -> None:
        self._ask("reconnect", database)

    def kill(self, database: str | None) -> None:
        self._ask("kill", database)

    def kill_client(self, session: int) -> None:
        self._ask("kill_client", session)

    async def wait_close(self, database: str | None) -> None:
        await self._wait("wait_close", database)

    def shutdown(self, wait: str | None) -> None:
        self._ask("shutdown", wait)


class Room:
    """A gateway with a console, and no fronts."""

    def __init__(self, *, fronts: Sequence[Any] = (), entries: Mapping[str, Any] | None = None, **lobby: Any) -> None:
        """``entries``: other ones of [databases], [users] and [peers] than the lobby's."""
        lobby = {"admin_users": ("boss",), "stats_users": ("guest",), **lobby}
        self.lobby = Lobby(**lobby)
        self.context = self.lobby.context
        self.context.config = replace(self.context.config, **(entries or {}))
        self.operations = FakeOperations()
        self.visitors: list[Visitor] = []
        self.pools = Pools(self.context.config, None, derive=cast("Any", None), tune=lambda _: None)
        self.console = Console(
            self.operations,
            context=self.context,
            pools=self.pools,
            fronts=lambda: fronts,
            loaded=lambda: Loaded(self.context.config, (), "gateway.ini", {}, Reading()),
        )
        self.context.console = self.console

    def arrive(self, **extra: Any) -> Visitor:
        """A client that has connected; ``extra`` is what its transport knows."""
        visitor = Visitor(self, **extra)
        self.visitors.append(visitor)
        return visitor

    async def enter(self, user: str = "boss", database: str = "pgbouncer", **extra: Any) -> Visitor:
        """A client that logs in, and has read the welcome."""
        visitor = self.arrive(**extra)
        visitor.welcome = await visitor.send(StartupMessage(parameters={"user": user, "database": database}).encode())
        return visitor

    async def end(self) -> None:
        """All connections are over: nothing of them may be left."""
        for visitor in self.visitors:
            visitor.leave()
        await self.lobby.end()
        assert self.console.sessions == set()


class Visitor:
    """A client of the console."""

    def __init__(self, room: Room, **extra: Any) -> None:
        self.transport = FakeTransport(peername=("192.0.2.1", 40001), **extra)
        session = Session(room.context, "tcp")
        self.transport.set_protocol(session)
        session.connection_made(self.transport)
        self.welcome = b""
        self.gone = False

    @property
    def session(self) -> ConsoleSession:
        return cast("ConsoleSession", self.transport.get_protocol())

    async def send(self, data: bytes) -> bytes:
        """Sends, and gives what came back."""
        protocol = cast("asyncio.Protocol", self.transport.get_protocol())
        protocol.data_received(data)
        return await self.answer()

    async def answer(self) -> bytes:
        """What has come by itself."""
        for _ in range(100):
            await asyncio.sleep(0)
        return self.transport.take()

    def leave(self) -> None:
        """The connection is over."""
        if not self.gone:
            self.gone = True
            cast("asyncio.Protocol", self.transport.get_protocol()).connection_lost(None)

    async def query(self, sql: str) -> bytes:
        return await self.send(client.query(sql.encode()))


# -- what an answer says -----------------------------------------------------------------------------------------------


def kinds(data: bytes) -> str:
    """The types of the messages."""
    return "".join(chr(kind) for kind, _, _ in messages(data))


def _bodies(data: bytes, kind: int) -> list[bytes]:
    return [data[start + 5 : end] for each, start, end in messages(data) if each == kind]


def error(data: bytes) -> server.ErrorFields:
    """The only error."""
    (body,) = _bodies(data, server.ERROR)
    return server.parse_error(body)


def notices(data: bytes) -> list[server.ErrorFields]:
    return [server.parse_error(body) for body in _bodies(data, server.NOTICE)]


def tags(data: bytes) -> list[str]:
    return [body[:-1].decode() for body in _bodies(data, server.COMMAND_COMPLETE)]


def cells(data: bytes) -> list[list[bytes | None]]:
    """The rows, as they came."""
    found = []
    for body in _bodies(data, server.DATA_ROW):
        row: list[bytes | None] = []
        at = 2
        for _ in range(int.from_bytes(body[:2], "big")):
            size = int.from_bytes(body[at : at + 4], "big", signed=True)
            at += 4
            row.append(None if size < 0 else body[at : at + size])
            at += max(size, 0)
        found.append(row)
    return found


def rows(data: bytes) -> list[dict[str, str | None]]:
    """The rows of an answer in text, by name of column."""
    (description,) = _bodies(data, server.ROW_DESCRIPTION)
    names, at = [], 2
    for _ in range(int.from_bytes(description[:2], "big")):
        name, at = client.text(description, at)
        names.append(name.decode())
        at += 18
    return [
        dict(zip(names, (None if value is None else value.decode() for value in row), strict=True))
        for row in cells(data)
    ]
