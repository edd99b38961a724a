"""The login of a session: from its first octet to ReadyForQuery.

    SSLRequest, GSSENCRequest -> 'N';  CancelRequest -> served, no session;
    StartupMessage -> the login dialogue (:mod:`pgtrunk_gateway.auth.login`) -> database -> settings -> welcome

A coroutine per login, with client_login_timeout as its deadline. What it decides is in pure functions; it only reads,
writes and waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import PROTOCOL_3_0, CancelRequest, StartupMessage, parse_startup
from pgtrunk_gateway import auth
from pgtrunk_gateway.cancel.dispatch import Cancellable
from pgtrunk_gateway.errors import (
    AuthenticationFailed,
    CannotConnectNow,
    GatewayError,
    LoginRefused,
    LoginTimeout,
    NoSuchDatabase,
    NotSupported,
    ProtocolError,
    TooManyConnections,
)
from pgtrunk_gateway.inbox import Inbox
from pgtrunk_gateway.session import parameters

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pgtrunk_gateway.cancel.keys import CancelKey
    from pgtrunk_gateway.config.settings import DatabaseConfig
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.relay.context import Context

__all__ = ["Admission", "Client", "SessionLogin"]

_MESSAGE: Final = 16 << 10
"""Octets of one message during login."""
_UNREAD: Final = 64 << 10
"""Octets that a client may send ahead before it is not read any more."""


@dataclass(slots=True)
class Admission:
    """What a session has once it is logged in."""

    context: Context
    user: str
    database: str
    pool: Pool
    key: CancelKey
    profile: parameters.Profile
    certain: bool
    """Whether the server will take all of the profile."""
    query_wait_timeout: float
    idle_transaction_timeout: float

    def leave(self) -> None:
        """The session has ended."""
        self.context.admitted -= 1
        self.context.cancels.forget(self.key)


class Client(Cancellable, Protocol):
    """The session that logs in, as seen from here. Exactly one of its methods is called in the end."""

    transport: asyncio.Transport

    @property
    def address(self) -> str | None:
        """The client's IP address; None on a unix socket."""

    def admitted(self, admission: Admission, rest: bytes) -> None:
        """The login is complete; ``rest`` came behind its last message."""

    def fail(self, error: GatewayError) -> None: ...

    def served(self) -> None:
        """It was no session but a cancel request, which has been acted on."""

    def vanished(self) -> None:
        """It has said all that it will ever say, and that is not a whole login."""


class SessionLogin:
    """One login."""

    def __init__(self, context: Context, client: Client) -> None:
        self._context = context
        self._client = client
        self._transport = client.transport
        self._inbox = Inbox()
        self._reader = MessageReader(_MESSAGE)
        self._paused = False
        self._counted = False
        self._ended = False
        self._pool: Pool | None = None
        """Whose first login at the server is waited for."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="login")

    def stop(self) -> None:
        """The session has ended."""
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._inbox.data_received(data)
        if len(self._inbox) > _UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """The client says no more. What it has said still counts: a cancel request often ends so."""
        self._inbox.connection_lost(None)
        self._ended = True

    # -- the dialogue --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        timeout = self._context.config.client_login_timeout
        error: GatewayError
        try:
            async with asyncio.timeout(timeout or None):
                admission = await self._log_in()
        except ConnectionError:
            self._uncount()
            self._client.vanished()
            return
        except TimeoutError:
            trouble = "" if self._pool is None else self._pool.trouble
            error = LoginTimeout(detail=f"client_login_timeout = {timeout:g} s.{trouble}")
        except ProtocolViolation as violation:
            error = ProtocolError(str(violation))
        except GatewayError as refusal:
            error = refusal
        except asyncio.CancelledError:
            self._uncount()
            raise
        else:
            if admission is None:
                self._client.served()
            else:
                self._admit(admission)
            return
        self._uncount()
        self._context.counters.refused += 1
        self._client.fail(error)

    def _admit(self, admission: Admission) -> None:
        self._context.counters.admitted += 1
        rest = self._reader.rest() + self._inbox.take()
        if self._paused:
            self._transport.resume_reading()
        self._client.admitted(admission, rest)
        if self._ended:
            self._client.vanished()

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._context.admitted -= 1

    async def _log_in(self) -> Admission | None:
        packet = await self._startup()
        if isinstance(packet, CancelRequest):
            await self._context.cancels.serve(packet)
            return None
        self._negotiate(packet)
        user, database = _names(packet.parameters)
        self._count()
        await self._authenticate(user)
        entry = self._context.config.database(database)
        if entry is None:
            raise NoSuchDatabase(
                f"no such database: {database}", hint='Add it to [databases], or an entry "*" for all others.'
            )
        ignored = self._context.config.ignore_startup_parameters
        wanted = _settings(packet.parameters, ignored)
        pool = self._context.pool(entry, user)
        self._pool = pool
        greeting = await pool.greet()
        wanted = _carried(wanted, greeting, ignored)
        certain = all(parameters.is_certain(name, value, greeting) for name, value in wanted.items())
        return self._welcome(user, entry, pool, {**greeting, **wanted}, certain)

    async def _startup(self) -> StartupMessage | CancelRequest:
        data = b""
        asked: set[type] = set()
        while True:
            parsed = parse_startup(data)
            if parsed is None:
                data += await self._read()
                continue
            packet, size = parsed
            data = data[size:]
            if isinstance(packet, StartupMessage | CancelRequest):
                self._reader.feed(data)
                return packet
            if type(packet) in asked:
                raise ProtocolViolation("encryption was asked for twice")
            asked.add(type(packet))
            self._transport.write(b"N")

    async def _read(self) -> bytes:
        try:
            return await self._inbox.read()
        finally:
            # More may come while a derivation runs, but not without bound.
            if self._paused:
                self._paused = False
                self._transport.resume_reading()

    async def _message(self) -> tuple[int, bytes]:
        while (message := self._reader.next()) is None:
            self._reader.feed(await self._read())
        return message

    def _negotiate(self, packet: StartupMessage) -> None:
        """The gateway speaks 3.0, without protocol options: one that asks for more is told so and goes on."""
        if packet.protocol != PROTOCOL_3_0 or packet.options:
            self._transport.write(server.negotiate_protocol(PROTOCOL_3_0, list(packet.options)))

    def _count(self) -> None:
        context = self._context
        if context.draining:
            raise CannotConnectNow("the gateway is shutting down")
        limit = context.config.max_client_conn
        if context.admitted >= limit:
            raise TooManyConnections(
                "no more connections allowed (max_client_conn)",
                detail=f"max_client_conn = {limit}.",
                hint="Raise max_client_conn, or close sessions that are not needed.",
            )
        context.admitted += 1
        self._counted = True

    async def _authenticate(self, user: str) -> None:
        context, address = self._context, self._client.address
        now = asyncio.get_running_loop().time
        login = auth.Login(
            context.policy,
            user,
            nonce=context.random(auth.NONCE_LENGTH),
            retry_after=lambda: context.limiter.allow(address, now()),
        )
        actions = login.start()
        while True:
            derivation: auth.Derivation | None = None
            for action in actions:
                match action:
                    case auth.SendSasl(mechanisms):
                        self._transport.write(server.authentication_sasl(mechanisms))
                    case auth.SendSaslContinue(data):
                        self._transport.write(server.authentication_sasl_continue(data))
                    case auth.SendSaslFinal(data):
                        self._transport.write(server.authentication_sasl_final(data))
                    case auth.Accepted():
                        context.limiter.succeeded(address, now())
                        return
                    case auth.Refused(error):
                        if isinstance(error, AuthenticationFailed):
                            context.limiter.failed(address, now())
                        raise error
                    case auth.Derive():
                        derivation = action.derivation
            if derivation is not None:
                actions = login.derived(await context.derive(derivation))
            else:
                actions = await self._answer(login)

    async def _answer(self, login: auth.Login) -> tuple[auth.Action, ...]:
        kind, body = await self._message()
        if kind == client.TERMINATE:
            raise LoginRefused("client close request")
        if kind != client.PASSWORD:
            raise ProtocolViolation(f"expected a password message, got {chr(kind)!r}")
        return login.message(body)

    def _welcome(
        self, user: str, entry: DatabaseConfig, pool: Pool, reported: Mapping[str, str], certain: bool
    ) -> Admission:
        config = self._context.config
        key = self._context.cancels.register(self._client)
        welcome = [server.authentication_ok()]
        welcome += [server.parameter_status(name, value) for name, value in reported.items()]
        welcome += [server.backend_key_data(key.pid, key.secret), server.ready()]
        self._transport.write(b"".join(welcome))
        return Admission(
            context=self._context,
            user=user,
            database=entry.name,
            pool=pool,
            key=key,
            profile=parameters.profile(reported),
            certain=certain,
            query_wait_timeout=config.resolve_query_wait_timeout(entry, user),
            idle_transaction_timeout=config.resolve_idle_transaction_timeout(user),
        )


# -- the startup packet ----------------------------------------------------------------------------------------------


def _names(packet: Mapping[str, str]) -> tuple[str, str]:
    """User and database, which is the user's name where none is given."""
    user = packet.get("user", "")
    if not user:
        raise LoginRefused("no user name specified in startup packet")
    if packet.get("replication", "false").lower() not in ("false", "off", "no", "0"):
        raise NotSupported("replication connections are not supported yet", severity="FATAL")
    return user, packet.get("database") or user


def _settings(packet: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
    """The settings in a startup packet that the session will have."""
    settings = {}
    for name, value in packet.items():
        if name in ("user", "database", "replication"):
            continue
        tracked = parameters.tracked_name(name)
        if tracked is not None:
            settings[tracked] = parameters.startup_value(tracked, value)
        elif name not in ignored:
            raise _unsupported(name)
    return settings


def _carried(settings: Mapping[str, str], reported: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
    """Those of ``settings`` that this server reports, as older ones do not all: others would not be made anywhere."""
    for name in settings:
        if name not in reported and name not in ignored:
            raise _unsupported(name)
    return {name: value for name, value in settings.items() if name in reported}


def _unsupported(name: str) -> NotSupported:
    return NotSupported(
        f"unsupported startup parameter: {name}",
        severity="FATAL",
        detail="In transaction pooling only settings that the server reports follow a session to its next backend.",
        hint=f"Add {name} to ignore_startup_parameters to have it dropped, or set it with ALTER ROLE.",
    )
