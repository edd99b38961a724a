"""Servers before PostgreSQL 14, which do not say what they are: they are asked, behind the login."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pgtrunk.wire import backend as b
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable
from pgtrunk_gateway.pool.connect import Opened, log_in
from pgtrunk_gateway.pool.standing import qualifies
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.auth import Derivation, ScramKeys
    from pgtrunk_gateway.config.entries import SessionAttrs

NOTICE = b"N\0\0\0\x0cMhello\0\0"
WELCOME = (
    b.authentication_ok() + b.parameter_status("server_version", "13.1") + b.backend_key_data(7, b"key!") + b.ready()
)


class OldServer:
    """``answer``: what it says to the first question; None: nothing. ``rest``: what comes right behind that."""

    def __init__(self, answer: bytes | None, rest: bytes = b"", behind_login: bytes = b"") -> None:
        self.answer = answer
        self.rest = rest
        self.behind_login = behind_login
        self.questions: list[bytes] = []
        self.port = 0
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
                writer.write(WELCOME + self.behind_login)
                head = await reader.readexactly(5)
                self.questions.append((await reader.readexactly(int.from_bytes(head[1:], "big") - 4))[:-1])
                if self.answer is not None:
                    writer.write(self.answer + self.rest)
                await reader.read()
        finally:
            self.ended.set()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def log_in(self, attrs: SessionAttrs, timeout: float = 10.0, **settings: str) -> Opened:
        target = Target(host="127.0.0.1", port=self.port, dbname="d", user="u", settings=tuple(settings.items()))
        return await log_in(target, timeout=timeout, derive=_derive, tune=_ignore, attrs=attrs)


@asynccontextmanager
async def old_server(*arguments: Any) -> AsyncIterator[OldServer]:
    mine = OldServer(*arguments)
    server = await asyncio.start_server(mine.serve, "127.0.0.1", 0)
    mine.port = server.sockets[0].getsockname()[1]
    async with server:
        yield mine
        async with asyncio.timeout(20):
            await mine.ended.wait()


def says(value: bytes) -> bytes:
    return b.row_description(["x"], [25]) + b.data_row([value]) + b.command_complete("SHOW") + b.ready()


@pytest.mark.parametrize(
    ("attrs", "answer", "question", "fits"),
    [
        ("primary", b"f", b"SELECT pg_catalog.pg_is_in_recovery()", True),
        ("standby", b"f", b"SELECT pg_catalog.pg_is_in_recovery()", False),
        ("read-write", b"off", b"SHOW transaction_read_only", True),
        ("read-only", b"off", b"SHOW transaction_read_only", False),
    ],
)
async def test_it_is_asked(attrs: SessionAttrs, answer: bytes, question: bytes, fits: bool) -> None:
    async with old_server(says(answer), b"", NOTICE) as server:
        opened = await server.log_in(attrs)
        assert server.questions == [question]
        assert qualifies(opened.standing, attrs) is fits
        assert not opened.transport.is_reading()
        opened.transport.abort()


async def test_what_comes_behind_the_answer_is_the_sessions() -> None:
    async with old_server(says(b"f"), NOTICE) as server:
        opened = await server.log_in("primary")
        assert opened.rest in (NOTICE, b"")
        opened.transport.abort()


async def test_a_walsender_is_asked_what_it_understands() -> None:
    async with old_server(says(b"on")) as server:
        opened = await server.log_in("primary", replication="true")
        assert server.questions == [b"SHOW transaction_read_only"]
        assert qualifies(opened.standing, "primary") is False
        opened.transport.abort()


async def test_nobody_is_asked_for_nothing() -> None:
    async with old_server(None) as server:
        opened = await server.log_in("any")
        opened.transport.abort()
    assert not server.questions


async def test_an_error_is_a_refusal() -> None:
    async with old_server(b.error("42883", "no such function")) as server:
        with pytest.raises(BackendRefused, match="no such function"):
            await server.log_in("primary")


async def test_silence_is_a_timeout() -> None:
    async with old_server(None) as server:
        with pytest.raises(BackendUnavailable, match="server_connect_timeout"):
            await server.log_in("primary", timeout=0.1)


async def _derive(derivation: Derivation) -> ScramKeys:
    return derivation.run()


def _ignore(_: Any) -> None: ...
