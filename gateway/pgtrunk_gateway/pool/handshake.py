"""The gateway's login at Postgres, sans-IO: the server's messages in, what to send out.

    start -> StartupMessage -> [AuthenticationSASL -> first -> Continue -> (derive keys) -> final -> Final] -> Ok
          -> ParameterStatus, BackendKeyData -> ReadyForQuery

Trust and SCRAM-SHA-256 are spoken; another method is refused with words. An ErrorResponse becomes
:class:`BackendRefused` with the server's own SQLSTATE and message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.auth import MECHANISM, ClientExchange, Derivation, ScramKeys
from pgtrunk_gateway.errors import BackendRefused

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Derive", "Handshake", "Send"]

_LIMIT = 1 << 20
"""Octets of one message before ReadyForQuery; a ParameterStatus may hold a long search_path."""
_METHODS = {3: "password in clear", 5: "md5", 7: "GSSAPI", 9: "SSPI"}


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to the server."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Derive:
    """Run this (expensive: in an executor) and give the result to :meth:`Handshake.derived`."""

    derivation: Derivation


Step: TypeAlias = Send | Derive


class Handshake:
    """One login. ``nonce``: ``auth.NONCE_LENGTH`` fresh random octets."""

    def __init__(self, target: Target, *, nonce: bytes) -> None:
        self.target = target
        self.parameters: dict[str, str] = {}
        self.key: server.BackendKeyData | None = None
        self.done = False
        """ReadyForQuery has come."""
        self._reader = MessageReader(_LIMIT)
        self._scram = ClientExchange(nonce=nonce)
        self._proving = False

    def start(self) -> bytes:
        """The startup packet."""
        return StartupMessage(parameters={"user": self.target.user, "database": self.target.dbname}).encode()

    def feed(self, data: bytes) -> Iterator[Step]:
        """Takes what the server sent -> what to do.

        Raises :class:`BackendRefused` where the server refuses the login, :class:`ProtocolViolation` where it does not
        speak the protocol.
        """
        self._reader.feed(data)
        while not self.done and (message := self._reader.next()) is not None:
            yield from self._message(*message)

    def derived(self, keys: ScramKeys) -> Send:
        """The derivation that was asked for is done."""
        return Send(client.sasl_response(self._scram.final(keys)))

    def rest(self) -> bytes:
        """What came behind ReadyForQuery."""
        return self._reader.rest()

    def _message(self, kind: int, body: bytes) -> Iterator[Step]:
        if kind == server.AUTHENTICATION:
            yield from self._authentication(server.parse_authentication(body))
        elif kind == server.PARAMETER_STATUS:
            name, value = server.parse_parameter_status(body)
            self.parameters[name] = value
        elif kind == server.BACKEND_KEY_DATA:
            self.key = server.parse_backend_key_data(body)
        elif kind == server.ERROR:
            fields = server.parse_error(body)
            raise BackendRefused(
                fields.message,
                sqlstate=fields.sqlstate,
                detail=fields.detail or None,
                hint=fields.hint or None,
                log=f"server login failed: {fields.severity} {fields.message}",
            )
        elif kind == server.READY:
            self.done = True
        elif kind != server.NOTICE:
            raise ProtocolViolation(f"unexpected message {chr(kind)!r} from the server during login")

    def _authentication(self, request: server.Authentication) -> Iterator[Step]:
        match request.code:
            case 0:
                if self._proving:
                    raise ProtocolViolation("the server ended SCRAM without proving that it knows the user's secret")
            case 10:
                mechanisms = server.parse_sasl_mechanisms(request.data)
                if MECHANISM not in mechanisms:
                    raise self._unsupported(" or ".join(mechanisms))
                self._password()
                self._proving = True
                yield Send(client.sasl_initial_response(MECHANISM, self._scram.first()))
            case 11:
                yield Derive(self._scram.challenge(request.data, self._password()))
            case 12:
                self._scram.verify(request.data)
                self._proving = False
            case code:
                raise self._unsupported(_METHODS.get(code, f"method {code}"))

    def _password(self) -> str:
        if self.target.password is None:
            raise BackendRefused(
                f"no password for user {self.target.user!r}, which the server asks for",
                sqlstate="28P01",
                hint="Give password= in [databases], or the password in clear in auth_file.",
            )
        return self.target.password

    def _unsupported(self, method: str) -> BackendRefused:
        return BackendRefused(
            f"the server asks user {self.target.user!r} for {method}, which the gateway does not speak",
            sqlstate="0A000",
            hint=f"Let pg_hba.conf ask the gateway for {MECHANISM.lower()} or trust.",
        )
