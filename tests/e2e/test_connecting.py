"""Opening connections to a server that misbehaves: every way to fail is an error of ours, and leaves no socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.auth import Plain
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, GatewayError
from pgtrunk_gateway.pool.connect import log_in
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.auth import Derivation, ScramKeys

pytestmark = pytest.mark.both_loops


@asynccontextmanager
async def server(*answers: bytes, hang_up: bool = True) -> AsyncIterator[int]:
    """Answers each message with the next of ``answers``, then hangs up or says no more -> its port."""
    gone = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(1000)
            writer.write(answer)
        if not hang_up:
            await gone.wait()
        writer.close()

    listening = await asyncio.start_server(speak, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        gone.set()
        listening.close()
        await listening.wait_closed()


def ignore(_: socket.socket) -> None: ...


async def derive(derivation: Derivation) -> ScramKeys:
    return derivation.run()


async def failure(
    port: int, *, host: str = "127.0.0.1", timeout: float = 20, tune: Callable[[socket.socket], None] = ignore
) -> GatewayError:
    target = Target(host=host, port=port, dbname="d", user="u", secret=Plain("secret"))
    with pytest.raises(GatewayError) as caught:
        await log_in(target, timeout=timeout, derive=derive, tune=tune)
    return caught.value


CHALLENGE = b"r=%b,s=c2FsdHNhbHQ=,i=1"


async def test_a_server_that_hangs_up_while_the_password_is_derived() -> None:
    """On uvloop a write to a closed transport is a RuntimeError, which would end the opening task unseen."""
    held = asyncio.Event()

    async def slowly(derivation: Derivation) -> ScramKeys:
        await held.wait()
        return derivation.run()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b.authentication_sasl(["SCRAM-SHA-256"]))
        first = await reader.read(1000)
        nonce = first.rpartition(b"r=")[2] + b"more"
        writer.write(b.authentication_sasl_continue(CHALLENGE % nonce))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        asyncio.get_running_loop().call_later(0.05, held.set)

    listening = await asyncio.start_server(speak, "127.0.0.1", 0)
    target = Target(
        host="127.0.0.1", port=listening.sockets[0].getsockname()[1], dbname="d", user="u", secret=Plain("secret")
    )
    with pytest.raises(BackendUnavailable, match="lost during login"):
        await log_in(target, timeout=20, derive=slowly, tune=ignore)
    listening.close()
    await listening.wait_closed()


async def test_nobody_listens() -> None:
    async with server() as port:
        pass
    error = await failure(port)
    assert isinstance(error, BackendUnavailable)
    assert f"cannot connect to the server at 127.0.0.1:{port}" in error.message


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".test"])
async def test_a_name_that_cannot_be_one(host: str) -> None:
    assert isinstance(await failure(5432, host=host), BackendUnavailable)


async def test_a_socket_option_that_the_system_refuses() -> None:
    def refuse(_: socket.socket) -> None:
        raise OSError(22, "Invalid argument")

    async with server(hang_up=False) as port:
        error = await failure(port, tune=refuse)
    assert isinstance(error, BackendUnavailable)
    assert "Invalid argument" in error.message


async def test_a_server_that_never_answers() -> None:
    async with server(hang_up=False) as port:
        error = await failure(port, timeout=0.05)
    assert error.message.startswith("connect timeout: no connection to 127.0.0.1:")
    assert "server_connect_timeout = 0.05 s" in error.message


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"", BackendUnavailable, "lost during login"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", BackendRefused, "server login failed"),
        (encode(b"Q", b"select 1\0"), BackendRefused, "unexpected message 'Q'"),
        (encode(b"R", b"\0\0\0\x07"), BackendRefused, "asks user 'u' for GSSAPI"),
        (b.error("57P03", "the database system is starting up", severity="FATAL"), BackendRefused, "starting up"),
        (b.authentication_sasl(["SCRAM-SHA-512"]), BackendRefused, "SCRAM-SHA-512"),
    ],
)
async def test_answers_that_are_no_login(answer: bytes, kind: type[GatewayError], words: str) -> None:
    async with server(answer) as port:
        error = await failure(port)
    assert isinstance(error, kind)
    assert words in error.message


async def test_cancelled_at_any_moment_it_leaves_no_task() -> None:
    async with server(hang_up=False) as port:
        target = Target(host="127.0.0.1", port=port, dbname="d", user="u")
        for turns in range(8):
            before = asyncio.all_tasks()
            opening = asyncio.ensure_future(log_in(target, timeout=20, derive=derive, tune=ignore))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await asyncio.sleep(0.01)
            assert {task for task in asyncio.all_tasks() - before if "speak" not in repr(task)} == set()
