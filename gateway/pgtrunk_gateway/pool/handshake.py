"""The gateway's login at Postgres, sans-IO: the server's messages in, what to send out.

    start -> StartupMessage -> [NegotiateProtocolVersion]
          -> [AuthenticationSASL -> first -> Continue -> (derive keys) -> final -> Final] -> Ok
          -> ParameterStatus, BackendKeyData -> ReadyForQuery

Trust, passwords in clear and by MD5, SCRAM-SHA-256 and, in TLS, SCRAM-SHA-256-PLUS are spoken; another method is
refused with words. A password in clear serves all of them, an MD5 secret only MD5, a SCRAM secret only SCRAM, and that
only once a client has proved the keys behind it (pass-through). An ErrorResponse becomes :class:`BackendRefused` with
the server's own SQLSTATE and message.

A server that does not speak the version that was asked for says so (NegotiateProtocolVersion), and the login goes on.
One that knows nothing of that, as poolers and proxies do, refuses the startup packet: ``understood`` tells that apart
from other refusals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import PROTOCOL_3_0, StartupMessage, version
from pgtrunk_gateway.auth import MD5, MECHANISM, ClientExchange, Derivation, Plain, ScramKeys, ScramSecret, Secret
from pgtrunk_gateway.errors import BackendRefused

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Derive", "Handshake", "Send"]

_LIMIT = 1 << 20
"""Octets of one message before ReadyForQuery; a ParameterStatus may hold a long search_path."""
_MD5_SALT = 4
_METHODS = {7: "GSSAPI", 9: "SSPI"}
_UNDERSTANDING = b"RSKZNv"
"""Kinds of messages that nobody sends who has not read a startup packet."""
_OF_THE_PROTOCOL = frozenset({"0A000", "08P01", "XX000"})
"""With these a version is refused: by an old Postgres, by PgBouncer, and by whoever gives no SQLSTATE."""


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
    """One login. ``nonce``: ``auth.NONCE_LENGTH`` fresh random octets.

    ``channel_binding``: the tls-server-end-point of the server's certificate; None outside of TLS. ``protocol``: the
    version to ask for.
    """

    def __init__(
        self,
        target: Target,
        *,
        nonce: bytes,
        channel_binding: bytes | None = None,
        protocol: int = PROTOCOL_3_0,
    ) -> None:
        self.target = target
        self.protocol = protocol
        """What is spoken, as far as the server has said by now."""
        self.understood = False
        """Whether the server has said anything that shows that it has read the startup packet."""
        self.gave_password = False
        """The server has asked for the password in clear, and got it."""
        self.parameters: dict[str, str] = {}
        self.key: server.BackendKeyData | None = None
        self.done = False
        """ReadyForQuery has come."""
        self._reader = MessageReader(_LIMIT)
        self._credentials = target.credentials
        self._scram = ClientExchange(nonce=nonce, channel_binding=channel_binding)
        self._proving = False

    def start(self) -> bytes:
        """The startup packet."""
        names = {"user": self.target.user, "database": self.target.dbname}
        return StartupMessage(self.protocol, {**names, **dict(self.target.settings)}).encode()

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
        self.understood = self.understood or kind in _UNDERSTANDING
        if kind == server.AUTHENTICATION:
            yield from self._authentication(server.parse_authentication(body))
        elif kind == server.PARAMETER_STATUS:
            name, value = server.parse_parameter_status(body)
            self.parameters[name] = value
        elif kind == server.BACKEND_KEY_DATA:
            self.key = server.parse_backend_key_data(body)
        elif kind == server.NEGOTIATE_PROTOCOL:
            self._negotiate(body)
        elif kind == server.ERROR:
            fields = server.parse_error(body)
            self.understood = self.understood or fields.sqlstate not in _OF_THE_PROTOCOL
            raise BackendRefused(
                fields.message,
                sqlstate=fields.sqlstate,
                detail=fields.detail or f"So the server answered the gateway's own login as user {self.target.user!r}.",
                hint=fields.hint or None,
                log=f"server login failed: {fields.severity} {fields.message}",
            )
        elif kind == server.READY:
            self.done = True
        elif kind != server.NOTICE:
            raise ProtocolViolation(f"unexpected message {chr(kind)!r} from the server during login")

    def _negotiate(self, body: bytes) -> None:
        # The options that it does not know are of no interest: none was sent.
        newest, _ = server.parse_negotiate_protocol(body)
        if not PROTOCOL_3_0 <= newest <= self.protocol:
            raise ProtocolViolation(
                f"the server wants protocol {version(newest)}, where {version(self.protocol)} was asked for"
            )
        self.protocol = newest

    def _authentication(self, request: server.Authentication) -> Iterator[Step]:
        match request.code:
            case 0:
                if self._proving:
                    raise ProtocolViolation("the server ended SCRAM without proving that it knows the user's secret")
            case 3:
                yield Send(client.password(self._clear()))
                self.gave_password = True
            case 5:
                yield Send(client.password(self._md5(request.data)))
            case 10:
                yield self._choose(server.parse_sasl_mechanisms(request.data))
            case 11:
                yield self._prove(request.data)
            case 12:
                self._scram.verify(request.data)
                self._proving = False
            case code:
                raise self._unsupported(_METHODS.get(code, f"method {code}"))

    def _clear(self) -> bytes:
        match self._secret():
            case Plain(password):
                return password.encode("utf-8", "surrogateescape")
            case _:
                raise _wrong_type("cannot do cleartext authentication: wrong password type")

    def _md5(self, salt: bytes) -> bytes:
        if len(salt) != _MD5_SALT:
            raise ProtocolViolation(f"the server's MD5 salt has {len(salt)} octets")
        match self._secret():
            case Plain(password):
                return MD5.of(self.target.user, password).answer(salt)
            case MD5() as secret:
                return secret.answer(salt)
            case ScramSecret():
                raise _wrong_type("cannot do MD5 authentication: wrong password type")

    def _choose(self, mechanisms: list[str]) -> Send:
        mechanism = self._scram.choose(mechanisms)
        if mechanism is None:
            raise self._unsupported(" or ".join(mechanisms))
        match self._secret():
            case MD5():
                raise _wrong_type("cannot do SCRAM authentication: wrong password type")
            case ScramSecret() if self._credentials.keys is None:
                raise _wrong_type(
                    "cannot do SCRAM authentication: password is SCRAM secret but client authentication did not"
                    " provide SCRAM keys"
                )
            case _:
                self._proving = True
                return Send(client.sasl_initial_response(mechanism, self._scram.first()))

    def _prove(self, challenge: bytes) -> Step:
        secret, keys = self._credentials.secret, self._credentials.keys
        if isinstance(secret, Plain) and self._proving:
            return Derive(self._scram.challenge(challenge, secret.password))
        if not isinstance(secret, ScramSecret) or keys is None or not self._proving:
            raise ProtocolViolation("the server goes on with SCRAM, which it has not begun")
        if self._scram.asked(challenge) != (secret.salt, secret.iterations):
            raise BackendRefused(
                f"server login failed: the server has another SCRAM secret of user {self.target.user!r}",
                sqlstate="28P01",
                detail="Pass-through needs the same secret here and in Postgres, salt and iterations included.",
                hint="Copy rolpassword from pg_authid to auth_file, or use auth_query.",
            )
        return self.derived(keys)

    def _secret(self) -> Secret:
        secret = self._credentials.secret
        if secret is None or secret == Plain(""):
            raise BackendRefused(
                f"no password for user {self.target.user!r}, which the server asks for",
                sqlstate="28P01",
                hint="Give user= and password= in [databases], or the user's secret in auth_file.",
            )
        return secret

    def _unsupported(self, method: str) -> BackendRefused:
        return BackendRefused(
            f"the server asks user {self.target.user!r} for {method}, which the gateway does not speak",
            sqlstate="0A000",
            hint=f"Let pg_hba.conf ask the gateway for {MECHANISM.lower()} or trust.",
        )


def _wrong_type(log: str) -> BackendRefused:
    return BackendRefused(
        "server login failed: wrong password type",
        sqlstate="28P01",
        detail="The secret that the gateway has cannot serve the method that the server asks for.",
        hint="Let the client log in by SCRAM, or put the password in clear in auth_file or into [databases].",
        log=log,
    )
