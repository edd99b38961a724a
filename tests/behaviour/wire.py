"""Sessions that send exactly the bytes they are told to, over each front, with a login that each front takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from helpers.transcript import line
from pgtrunk import StreamManager
from pgtrunk_gateway.auth import NONCE_LENGTH, Plain
from pgtrunk_gateway.pool.handshake import Derive, Handshake, Send
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from behaviour.fronts import Front
    from helpers.raw_session import Message

__all__ = ["Wire", "lines", "open_raw", "wires"]

_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")


class Wire:
    """Opens raw sessions over one front; over QUIC all of them in one trunk."""

    def __init__(self, front: Front, trunk: StreamManager | None) -> None:
        self.front = front
        self.sessions: list[RawSession] = []
        self._trunk = trunk

    async def open(self) -> RawSession:
        """A connection on which nothing of Postgres's protocol has been said yet but SSLRequest."""
        session = RawSession()
        session.reads_messages = False
        self.sessions.append(session)
        await open_raw(self.front, self._trunk, lambda: session)
        return session

    async def log_in(self, database: str = DATABASE, **settings: str) -> RawSession:
        """A session of the tests' user that is ready for queries."""
        session = await self.open()
        target = Target(
            host="", port=0, dbname=database, user=USER, secret=Plain(PASSWORD), settings=tuple(settings.items())
        )
        handshake = Handshake(target, nonce=os.urandom(NONCE_LENGTH))
        session.send(handshake.start())
        while not handshake.done:
            for step in handshake.feed(await session.until_octets(1)):
                match step:
                    case Send(data):
                        session.send(data)
                    case Derive(derivation):
                        session.send(handshake.derived(derivation.run()).data)
        session.key = handshake.key
        session.parameters = handshake.parameters
        session.reads_messages = True
        session.data_received(handshake.rest())
        return session

    def close(self) -> None:
        for session in self.sessions:
            if session.transport is not None:
                session.abort()


async def open_raw(front: Front, trunk: StreamManager | None, protocol: Any) -> None:
    """Connects what ``protocol`` makes, by ``front``, through TLS where that is asked for."""
    loop = asyncio.get_running_loop()
    if trunk is not None:
        await trunk.open_stream(protocol)
    elif front.ca_file:
        context = ssl.create_default_context(cafile=front.ca_file)
        plain, answer = await loop.create_connection(_Asking, front.host, front.port)
        plain.write(_SSL_REQUEST)
        async with asyncio.timeout(20):
            assert await answer.said == b"S"
        session = protocol()
        secured = await loop.start_tls(plain, session, context, server_hostname=front.host)
        session.connection_made(secured)
    elif front.host.startswith("/"):
        await loop.create_unix_connection(protocol, f"{front.host}/.s.PGSQL.{front.port}")
    else:
        await loop.create_connection(protocol, front.host, front.port)


class _Asking(asyncio.Protocol):
    """Waits for the one octet that answers SSLRequest."""

    def __init__(self) -> None:
        self.said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.said.set_result(data)


@contextlib.asynccontextmanager
async def wires(front: Front) -> AsyncIterator[Wire]:
    """A `Wire` whose sessions, and trunk, end with the block."""
    async with contextlib.AsyncExitStack() as stack:
        trunk = None
        if front.gateway:
            trunk = await stack.enter_async_context(StreamManager(front.gateway, **front.trunk))
        wire = Wire(front, trunk)
        stack.callback(wire.close)
        yield wire


def lines(messages: list[Message], fields: str = "") -> list[str]:
    """A transcript. ParameterStatus has no fixed place in it before ReadyForQuery, nor order.

    ``fields``: the types of those fields of errors and notices that are told too.
    """
    told = [line(message.kind, message.body) + _fields(message, fields) for message in messages]
    reports = sorted(text for text in told if text.startswith("ParameterStatus"))
    return [text for text in told if not text.startswith("ParameterStatus")] + reports


def _fields(message: Message, fields: str) -> str:
    if not fields or message.kind not in "EN":
        return ""
    said = {part[:1].decode(): part[1:].decode(errors="replace") for part in message.body.split(b"\0") if part}
    # Each backend has a schema of its own for what is temporary.
    return re.sub(r"\bpg_temp_\d+", "pg_temp", "".join(f" {each}={said[each]}" for each in fields if each in said))
