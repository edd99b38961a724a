"""The login dialogue of one session: the client's messages in, actions for the session out.

Rule 1: everything that changes the state of a login is in `TABLE`; what is not in it is a protocol error of the client,
    except after the end, when nothing is answered any more.
Rule 2: this file knows no transport, clock, executor or message encoding. It asks by actions; the session obeys in
    order, and answers `Derive`, once, by `derived`.
Rule 3: a client cannot tell a wrong password from a user who does not exist or cannot log in by SCRAM. All of them get
    the same messages, salt and iteration count included, and are refused at the same point. What differs goes to the
    log, as the error's `log`.
Rule 4: `Accepted` means that the client is who it says, no more: whether there is such a database and room for another
    session is for the session to check after it, and then to say AuthenticationOk.

    NEW        start    -> CLOSED     trust and any: accepted or refused at once; too many failures: refused
                        -> OFFERED    the mechanism is offered
    OFFERED    message  -> PROVING    SASLInitialResponse; the challenge goes out
                        -> DERIVING   the same for a password in clear: the keys are derived while the client
                                      computes its proof, which takes it as long. Its salt is that of `mock_salt`, so
                                      that the challenge need not wait for PBKDF2 and gives nothing away by its time
    DERIVING   derived  -> PROVING
               message  -> HOLDING    the proof came first; it is kept
    HOLDING    derived  -> CLOSED     judged
    PROVING    message  -> CLOSED     judged

Which secret leads where: a SCRAM secret is used as it is; a password in clear is derived; an MD5 secret, an empty
password and an unknown user are doomed: they go through the motions against a verifier that no password fits.
PgBouncer's trust wants the user to be in auth_file, `any` does not; without an auth_file trust accepts everyone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from pgtrunk.errors import ProtocolViolation, UsageError
from pgtrunk.wire.frontend import parse_sasl_initial_response
from pgtrunk_gateway.auth.scram import (
    DEFAULT_ITERATIONS,
    MECHANISM,
    Derivation,
    ScramKeys,
    Verifier,
    mock_salt,
    mock_verifier,
)
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.auth.secret import MD5, Plain, ScramSecret
from pgtrunk_gateway.errors import (
    AuthenticationFailed,
    GatewayError,
    LoginRefused,
    ProtocolError,
    TooManyFailures,
)

if TYPE_CHECKING:
    from pgtrunk_gateway.auth.userlist import Userlist

__all__ = [
    "Accepted",
    "Action",
    "AuthType",
    "Derive",
    "Login",
    "LoginPolicy",
    "Refused",
    "SendSasl",
    "SendSaslContinue",
    "SendSaslFinal",
]

AuthType: TypeAlias = Literal["any", "trust", "plain", "md5", "scram-sha-256", "cert"]
"""`md5` means SCRAM here: nobody is asked for an MD5 hash, but its refusals have PgBouncer's words for md5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPolicy:
    """What all logins of a gateway have in common; a reload makes another."""

    auth_type: AuthType
    userlist: Userlist | None
    """None: no auth_file."""
    mock_key: bytes = field(repr=False)
    """The key of `mock_salt`: one for the fleet, better one that outlives a restart."""
    iterations: int = DEFAULT_ITERATIONS
    """scram_iterations: for passwords in clear, and shown for users who cannot log in."""


# -- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendSasl:
    """Send AuthenticationSASL."""

    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendSaslContinue:
    """Send AuthenticationSASLContinue."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SendSaslFinal:
    """Send AuthenticationSASLFinal."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Derive:
    """Run the derivation in an executor, or find it in the cache, and give the result to `Login.derived`."""

    derivation: Derivation


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is `user`. `keys`: see `ServerExchange.keys`; None where no SCRAM took place."""

    user: str
    keys: ScramKeys | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Send the error and close. An `AuthenticationFailed` is to be counted by the limiter."""

    error: GatewayError


Action: TypeAlias = SendSasl | SendSaslContinue | SendSaslFinal | Derive | Accepted | Refused


# -- the table -------------------------------------------------------------------------------------------------------


class State(enum.Enum):
    NEW = enum.auto()
    OFFERED = enum.auto()
    DERIVING = enum.auto()
    HOLDING = enum.auto()
    PROVING = enum.auto()
    CLOSED = enum.auto()


class Event(enum.Enum):
    START = enum.auto()
    MESSAGE = enum.auto()
    DERIVED = enum.auto()


class Login:
    """One login. Its methods return the actions to perform, in order; after `Accepted` or `Refused` it is over."""

    def __init__(self, policy: LoginPolicy, user: str, *, nonce: bytes, retry_after: Callable[[], float]) -> None:
        """`user` as the startup packet has it; `nonce`: `NONCE_LENGTH` fresh random octets.

        `retry_after` is the limiter's `allow` for this client: 0.0, or the seconds that it must wait.
        """
        self.state = State.NEW
        self.user = user
        self._policy = policy
        self._nonce = nonce
        self._retry_after = retry_after
        self._exchange: ServerExchange | None = None
        self._verifier: Verifier | None = None
        self._held = b""
        self._doom: str | None = None
        """Why this login fails whatever the proof says, for the log."""

    def start(self) -> tuple[Action, ...]:
        """The startup packet has been read."""
        return self._handle(Event.START)

    def message(self, body: bytes) -> tuple[Action, ...]:
        """A message of type 'p' has come; `body` is what follows its length."""
        return self._handle(Event.MESSAGE, body=body)

    def derived(self, keys: ScramKeys) -> tuple[Action, ...]:
        """The derivation that was asked for is done."""
        return self._handle(Event.DERIVED, keys=keys)

    def __repr__(self) -> str:
        return f"<Login of {self.user!r} {self.state.name}>"

    def _handle(self, event: Event, *, body: bytes = b"", keys: ScramKeys | None = None) -> tuple[Action, ...]:
        if self.state is State.CLOSED:
            return ()
        if keys is not None:
            self._verifier = keys
        try:
            step = TABLE[self.state].get(event)
            if step is None:
                raise _out_of_turn(self.state, event)
            self.state, actions = step(self, body)
        except GatewayError as error:
            self.state, actions = State.CLOSED, (Refused(error),)
        return actions

    # Steps: each returns the next state and the actions, or raises what the client is refused with.

    def _begin(self, _body: bytes) -> _Step:
        policy = self._policy
        if policy.auth_type == "any":
            return State.CLOSED, (Accepted(self.user),)
        if policy.auth_type == "trust":
            if policy.userlist is not None and self.user not in policy.userlist:
                raise LoginRefused('"trust" authentication failed', log=f"no such user: {self.user!r}")
            return State.CLOSED, (Accepted(self.user),)
        self._check_failures()
        return State.OFFERED, (SendSasl((MECHANISM,)),)

    def _challenge(self, body: bytes) -> _Step:
        data = _initial_response(body)
        policy = self._policy
        secret = policy.userlist.get(self.user) if policy.userlist is not None else None
        salt, iterations = mock_salt(self.user, policy.mock_key), policy.iterations
        derivation = None
        match secret:
            case ScramSecret():
                salt, iterations = secret.salt, secret.iterations
                self._verifier = secret
            case Plain(password) if password:
                derivation = Derivation(password, salt, iterations)
            case _:
                self._doom = _reason(self.user, secret)
                self._verifier = mock_verifier(self.user, policy.mock_key)
        self._exchange = ServerExchange(salt, iterations, nonce=self._nonce)
        challenge = SendSaslContinue(self._exchange.first(data))
        if derivation is None:
            return State.PROVING, (challenge,)
        return State.DERIVING, (challenge, Derive(derivation))

    def _hold(self, body: bytes) -> _Step:
        self._held = body
        return State.HOLDING, ()

    def _go_on(self, _body: bytes) -> _Step:
        return State.PROVING, ()

    def _judge_held(self, _body: bytes) -> _Step:
        return self._judge(self._held)

    def _judge(self, body: bytes) -> _Step:
        assert self._exchange is not None and self._verifier is not None
        # Before the proof is looked at: logins begun together would otherwise each have their guess.
        self._check_failures()
        try:
            answer = self._exchange.final(body, self._verifier)
        except AuthenticationFailed:
            raise self._failure(self._doom or f"wrong password for user {self.user!r}") from None
        if self._doom is not None:
            raise self._failure(self._doom)
        return State.CLOSED, (SendSaslFinal(answer), Accepted(self.user, self._exchange.keys))

    def _failure(self, log: str) -> AuthenticationFailed:
        # PgBouncer's words for either auth_type.
        kind = "password" if self._policy.auth_type == "md5" else "SASL"
        return AuthenticationFailed(f"{kind} authentication failed", log=log)

    def _check_failures(self) -> None:
        wait = self._retry_after()
        if wait > 0.0:
            raise TooManyFailures(
                detail="login_failure_limit was reached within login_failure_window.",
                hint=f"Try again in {wait:.0f} s.",
            )


_Step: TypeAlias = tuple[State, tuple[Action, ...]]

TABLE: Mapping[State, Mapping[Event, Callable[[Login, bytes], _Step]]] = {
    State.NEW: {Event.START: Login._begin},
    State.OFFERED: {Event.MESSAGE: Login._challenge},
    State.DERIVING: {Event.MESSAGE: Login._hold, Event.DERIVED: Login._go_on},
    State.HOLDING: {Event.DERIVED: Login._judge_held},
    State.PROVING: {Event.MESSAGE: Login._judge},
    State.CLOSED: {},
}


def _out_of_turn(state: State, event: Event) -> Exception:
    if event is Event.MESSAGE:
        return ProtocolError("unexpected password message")
    return UsageError(f"{event.name} is not possible for a login that is {state.name}")


def _initial_response(body: bytes) -> bytes:
    try:
        response = parse_sasl_initial_response(body)
    except ProtocolViolation as error:
        raise ProtocolError(str(error)) from error
    if response.mechanism != MECHANISM:
        raise ProtocolError("client selected an invalid SASL authentication mechanism", detail=f"Offered: {MECHANISM}.")
    if response.data is None:
        raise ProtocolError("malformed SCRAM message", detail="SASLInitialResponse has no client-first-message.")
    return response.data


def _reason(user: str, secret: MD5 | Plain | None) -> str:
    match secret:
        case None:
            return f"no such user: {user!r}"
        case Plain():
            return f"user {user!r} has an empty password in auth_file, which lets nobody in"
        case MD5():
            return (
                f"user {user!r} has an MD5 secret in auth_file, which cannot serve a SCRAM login;"
                " put a SCRAM-SHA-256 secret or the password in its place"
            )
