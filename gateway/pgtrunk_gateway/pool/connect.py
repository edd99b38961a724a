"""Opens a connection to Postgres and logs in: the shell around :class:`Handshake`.

One deadline spans name resolution, connection and login. Whatever ends it early, a cancellation too, leaves no socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import PROTOCOL_3_0, version
from pgtrunk_gateway.address import readable
from pgtrunk_gateway.auth import NONCE_LENGTH, Derivation, ScramKeys
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable
from pgtrunk_gateway.inbox import Inbox
from pgtrunk_gateway.pool.encryption import NoTls, Way, ask_and_begin, channel_binding, encrypt, ways
from pgtrunk_gateway.pool.handshake import Derive, Handshake, Send
from pgtrunk_gateway.pool.standing import UNKNOWN, Question, Standing, qualifies, reported

if TYPE_CHECKING:
    from pgtrunk_gateway.config.entries import SessionAttrs
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Deriver", "Opened", "SocketTuner", "dial", "dial_like", "log_in"]

Deriver = Callable[[Derivation], Awaitable[ScramKeys]]
"""Runs PBKDF2 outside the event loop, or knows its result."""
SocketTuner = Callable[[socket.socket], None]
"""Sets the TCP options of a new connection."""


log = logging.getLogger(__name__)

_NOT_ADMITTED: Final = "28000"
"""What Postgres says where pg_hba.conf has no line for a connection like this one, or one that rejects it."""
_LIMIT: Final = 1 << 20
"""Octets of one message of an answer."""

_P = TypeVar("_P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection on which the login is done; ``rest`` came behind it."""

    transport: asyncio.Transport
    handshake: Handshake
    rest: bytes
    standing: Standing = UNKNOWN
    """What the server is, as far as it has said or was asked."""

    @property
    def exposed(self) -> bool:
        """Whether the password has crossed the network in clear, as Postgres' method "password" wants it."""
        if not self.handshake.gave_password or self.handshake.target.unix_path is not None:
            return False
        return self.transport.get_extra_info("ssl_object") is None

    @property
    def origin(self) -> str:
        """The gateway's own end, for the log."""
        name = self.transport.get_extra_info("sockname")
        return readable(name) if isinstance(name, tuple) else "unix"


async def log_in(
    target: Target,
    *,
    timeout: float,
    derive: Deriver,
    tune: SocketTuner,
    host: Host | None = None,
    attrs: SessionAttrs = "any",
) -> Opened:
    """Connects and logs in within ``timeout`` seconds (server_connect_timeout; 0: no limit).

    ``host``: what is known of the server, which decides for which protocol it is asked, and learns what came of it.
    Without it that is 3.0, which is enough for whoever never cancels anything. ``attrs``: what is to be known of the
    server's standing then; it is not judged here.

    Raises :class:`BackendUnavailable` where there is no connection, :class:`BackendRefused` where there is no login.
    """
    protocol = PROTOCOL_3_0 if host is None else host.next_protocol()
    attempt = _Attempt(target, derive, tune, protocol, attrs)
    try:
        async with asyncio.timeout(timeout or None):
            opened = await _log_in_as_it_can(attempt)
    except TimeoutError:
        if host is not None and attempt.is_too_new:
            host.said_nothing()
        raise BackendUnavailable(
            f"connect timeout: no connection to {target} within server_connect_timeout = {timeout:g} s",
            log="connect timeout",
        ) from None
    except OSError as error:
        raise BackendUnavailable(f"connection to the server at {target} lost during login: {error}") from error
    except ProtocolViolation as error:
        raise BackendRefused(f"server login failed: {error}", sqlstate=error.sqlstate) from error
    if host is not None:
        host.took(attempt.protocol)
    return opened


@dataclass(slots=True)
class _Attempt:
    """One login, whatever number of connections it takes. ``protocol``: what is asked for."""

    target: Target
    derive: Deriver
    tune: SocketTuner
    protocol: int
    attrs: SessionAttrs
    """What the server's standing has to be known for."""
    unanswered: bool = False
    """Whether a startup packet is out, and nothing has come that shows that it was read."""

    @property
    def is_too_new(self) -> bool:
        """Whether the protocol may be why there is no login."""
        return self.unanswered and self.protocol > PROTOCOL_3_0


async def _log_in_as_it_can(attempt: _Attempt) -> Opened:
    try:
        return await _log_in_by(ways(attempt.target), attempt)
    except (BackendRefused, ProtocolViolation, OSError) as error:
        if not attempt.is_too_new:
            raise
        asked = version(attempt.protocol)
        log.info("%s: %s; it was asked for protocol %s, and is now for 3.0", attempt.target, error, asked)
    attempt.protocol = PROTOCOL_3_0
    return await _log_in_by(ways(attempt.target), attempt)


async def dial(target: Target, factory: Callable[[], _P], tune: SocketTuner) -> tuple[asyncio.Transport, _P]:
    """Opens a connection to ``target``, over TCP or a unix socket.

    Raises :class:`BackendUnavailable`.
    """
    loop = asyncio.get_running_loop()
    path = target.unix_path
    try:
        if path is not None:
            return await loop.create_unix_connection(factory, path)
        transport, protocol = await loop.create_connection(factory, target.host, target.port)
        try:
            tune(transport.get_extra_info("socket"))
        except BaseException:
            transport.abort()
            raise
    except (OSError, UnicodeError) as error:
        # A name with an empty or an overlong label is a UnicodeError: the resolver never sees it.
        unknown = isinstance(error, socket.gaierror | UnicodeError)
        # asyncio has words of its own for what the system says, with the address once more.
        said = "" if unknown or not (errno := getattr(error, "errno", None)) else os.strerror(errno)
        reason = said or getattr(error, "strerror", None) or error
        words = "server DNS lookup failed" if unknown else "connect failed"
        raise BackendUnavailable(
            f"cannot connect to the server at {target}: {reason}", log=f"{words}: {reason}"
        ) from error
    return transport, protocol


async def dial_like(
    model: asyncio.Transport, target: Target, protocol: asyncio.Protocol, tune: SocketTuner
) -> asyncio.Transport:
    """One more connection to ``target``: in TLS if ``model`` is, whatever the settings say by now.

    Raises :class:`BackendUnavailable`.
    """
    context = model.get_extra_info("sslcontext")
    if context is None:
        transport, _ = await dial(target, lambda: protocol, tune)
        return transport
    transport, inbox = await dial(target, Inbox, tune)
    try:
        transport = await ask_and_begin(target, transport, inbox, context)
        if transport.is_closing():
            # The inbox has been told, and ``protocol`` would never be.
            raise ConnectionResetError("the server closed the connection")
    except BaseException as error:
        transport.abort()
        if isinstance(error, OSError):
            raise BackendUnavailable(f"connection to the server at {target} lost: {error}") from error
        raise
    transport.set_protocol(protocol)
    return transport


async def _log_in_by(order: Sequence[Way], attempt: _Attempt) -> Opened:
    way, *others = order
    target = attempt.target
    transport, inbox = await dial(target, Inbox, attempt.tune)
    encrypted = False
    try:
        transport = await encrypt(target, transport, inbox, way)
        encrypted = transport.get_extra_info("ssl_object") is not None
        return await _log_in(attempt, transport, inbox)
    except (NoTls, BackendRefused) as error:
        transport.abort()
        # pg_hba.conf may have a line for the other way.
        turned_down = isinstance(error, NoTls) or error.sqlstate == _NOT_ADMITTED
        if not others or not turned_down or (way is Way.OFFERED and not encrypted and not isinstance(error, NoTls)):
            raise
        log.info("%s: %s; trying the other way", target, error.log or error)
        refusal = error
    except BaseException:
        transport.abort()
        raise
    try:
        return await _log_in_by(others, attempt)
    except NoTls:
        raise refusal from None


async def _log_in(attempt: _Attempt, transport: asyncio.Transport, inbox: Inbox) -> Opened:
    target = attempt.target
    handshake = Handshake(
        target,
        nonce=os.urandom(NONCE_LENGTH),
        channel_binding=channel_binding(transport),
        protocol=attempt.protocol,
    )
    attempt.unanswered = True
    try:
        transport.write(handshake.start())
        while not handshake.done:
            for step in handshake.feed(await inbox.read()):
                match step:
                    case Send(data):
                        transport.write(data)
                    case Derive(derivation):
                        keys = await attempt.derive(derivation)
                        if transport.is_closing():
                            raise ConnectionResetError("the server closed the connection")
                        transport.write(handshake.derived(keys).data)
    finally:
        attempt.unanswered = not handshake.understood
    standing, rest = reported(handshake.parameters), handshake.rest()
    if qualifies(standing, attempt.attrs) is None:
        physical = dict(target.settings).get("replication", "database") != "database"
        question = Question(standing, attempt.attrs, physical=physical)
        rest = await _ask(question, transport, inbox, rest)
        standing = question.standing
    if transport.is_closing():
        raise BackendUnavailable(f"connection to the server at {target} lost right after its login")
    # Nothing is read from here on until a Backend has taken the transport over.
    transport.pause_reading()
    return Opened(transport, handshake, rest + inbox.take(), standing)


async def _ask(question: Question, transport: asyncio.Transport, inbox: Inbox, early: bytes) -> bytes:
    """Asks behind the login -> what came behind the answer."""
    reader = MessageReader(_LIMIT)
    reader.feed(early)
    transport.write(client.query(question.sql.encode()))
    while not question.done:
        message = reader.next()
        if message is None:
            reader.feed(await inbox.read())
        else:
            question.feed(*message)
    return reader.rest()
