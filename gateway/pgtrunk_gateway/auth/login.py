"""The login dialogue of one session: the client's messages in, actions for the session out.

Rule 1: everything that changes the state of a login is in `TABLE`; what is not in it is a protocol error of the client,
    except after the end, when nothing is answered any more.
Rule 2: this file knows no transport, clock, executor or message encoding. It asks by actions; the session obeys in
    order, and answers each `Derive`, once, by `derived`, and `LookUp` by `found`.
Rule 3: a client cannot tell a wrong password from a user who does not exist or cannot log in by this method. All of
    them get the same messages, by a decoy (`LoginPolicy.decoy`), and are refused at the same point. What differs goes
    to the log, as the error's `log`.
Rule 4: `Accepted` means that the client is who it says, no more: whether there is such a database and room for another
    session is for the session to check after it, and then to say AuthenticationOk.

    NEW        start    -> as below   the user is in auth_file, or there is no auth_query, or nobody is looked for
                        -> LOOKING    auth_query is asked
    LOOKING    found    -> as below
                        -> CLOSED     trust, any and cert: accepted or refused at once; too many failures: refused
                        -> ASKED      plain, md5: the request for a password goes out
                        -> OFFERED    scram-sha-256, and md5 for a SCRAM secret: the mechanisms are offered
    ASKED      message  -> CLOSED     judged
                        -> CHECKING   a password in clear, to be derived for the user's SCRAM secrets
    CHECKING   derived  -> CHECKING, until all have come; then CLOSED: judged
    OFFERED    message  -> PROVING    SASLInitialResponse; the challenge goes out
                        -> DERIVING   the same where a stored password is in clear: the keys are derived while the
                                      client computes its proof, which takes it as long. Its salt is that of
                                      `mock_salt`, so that the challenge need not wait for PBKDF2 and gives nothing away
                                      by its time
    DERIVING   derived  -> DERIVING, until all have come; then PROVING
               message  -> HOLDING    the proof came first; it is kept
    HOLDING    derived  -> HOLDING, until all have come; then CLOSED: judged
    PROVING    message  -> CLOSED     judged

Which secret serves what is in :mod:`~pgtrunk_gateway.auth.offer`. PgBouncer's trust wants the user to be in auth_file
or to be found by auth_query, `any` does not; without either, trust accepts everyone.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pgtrunk.errors import ProtocolViolation, UsageError
from pgtrunk.wire.frontend import parse_password, parse_sasl_initial_response
from pgtrunk_gateway.auth import offer
from pgtrunk_gateway.auth.actions import (
    Accepted,
    Action,
    Derive,
    LookUp,
    Refused,
    SendCleartext,
    SendMD5,
    SendSasl,
    SendSaslContinue,
    SendSaslFinal,
)
from pgtrunk_gateway.auth.choice import no_such_user
from pgtrunk_gateway.auth.claim import Claim
from pgtrunk_gateway.auth.scram import MECHANISM, MECHANISM_PLUS, ScramKeys, Verifier
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.errors import AuthenticationFailed, GatewayError, LoginRefused, ProtocolError

if TYPE_CHECKING:
    from pgtrunk_gateway.auth.certificate import ClientCertificate
    from pgtrunk_gateway.auth.policy import LoginPolicy
    from pgtrunk_gateway.auth.query import Found
    from pgtrunk_gateway.auth.secret import ScramSecret

__all__ = ["Login"]

_SALT = 4
"""Octets of the salt in AuthenticationMD5Password."""


class State(enum.Enum):
    NEW = enum.auto()
    LOOKING = enum.auto()
    ASKED = enum.auto()
    CHECKING = enum.auto()
    OFFERED = enum.auto()
    DERIVING = enum.auto()
    HOLDING = enum.auto()
    PROVING = enum.auto()
    CLOSED = enum.auto()


class Event(enum.Enum):
    START = enum.auto()
    FOUND = enum.auto()
    MESSAGE = enum.auto()
    DERIVED = enum.auto()


class Login:
    """One login. Its methods return the actions to perform, in order; after `Accepted` or `Refused` it is over."""

    def __init__(
        self,
        policy: LoginPolicy,
        user: str,
        *,
        nonce: bytes,
        retry_after: Callable[[], float],
        asks_query: bool = False,
        certificate: ClientCertificate | None = None,
        channel_binding: bytes | None = None,
    ) -> None:
        """`user` as the startup packet has it; `nonce`: `NONCE_LENGTH` fresh random octets.

        `retry_after` is the limiter's `allow` for this client: 0.0, or the seconds that it must wait. `asks_query`:
        users who are not in auth_file may be looked up. `certificate`: the client's, verified. `channel_binding`: see
        `ServerExchange`; None outside of TLS.
        """
        self.state = State.NEW
        self._policy = policy
        self._claim = Claim(policy, user, retry_after=retry_after, asks_query=asks_query)
        self._nonce = nonce
        self._certificate = certificate
        self._channel_binding = channel_binding
        self._by_md5 = False
        self._exchange: ServerExchange | None = None
        self._verifiers: list[Verifier] = []
        self._candidates: list[ScramSecret] = []
        """Whose keys are being derived from the client's password, in order."""
        self._owed = 0
        """Derivations that have been asked for and not come."""
        self._held = b""

    @property
    def user(self) -> str:
        """Who the client says that it is."""
        return self._claim.user

    @property
    def awaits_proof(self) -> bool:
        """Whether what the client says next is to prove something: it must not be taken from what may be a replay."""
        return self.state is not State.OFFERED

    def start(self) -> tuple[Action, ...]:
        """The startup packet has been read."""
        return self._handle(Event.START, b"")

    def found(self, found: Found | None) -> tuple[Action, ...]:
        """auth_query's answer. The client is the user that it names from then on; None: no such user."""
        return self._handle(Event.FOUND, found)

    def message(self, body: bytes) -> tuple[Action, ...]:
        """A message of type 'p' has come; `body` is what follows its length."""
        return self._handle(Event.MESSAGE, body)

    def derived(self, keys: ScramKeys) -> tuple[Action, ...]:
        """A derivation that was asked for is done."""
        return self._handle(Event.DERIVED, keys)

    def __repr__(self) -> str:
        return f"<Login of {self.user!r} {self.state.name}>"

    def _handle(self, event: Event, given: object) -> tuple[Action, ...]:
        if self.state is State.CLOSED:
            return ()
        try:
            step = TABLE[self.state].get(event)
            if step is None:
                raise _out_of_turn(self.state, event)
            self.state, actions = step(self, given)
        except ProtocolViolation as error:
            self.state, actions = State.CLOSED, (Refused(ProtocolError(str(error))),)
        except GatewayError as error:
            self.state, actions = State.CLOSED, (Refused(error),)
        return actions

    # Steps: each returns the next state and the actions, or raises what the client is refused with.

    def _begin(self, _given: object) -> _Step:
        policy = self._policy
        if policy.auth_type == "any":
            return State.CLOSED, (Accepted(self.user),)
        if policy.auth_type != "trust":
            self._claim.check_failures()
        if self._claim.looks_up():
            return State.LOOKING, (LookUp(),)
        return METHODS[policy.auth_type](self)

    def _look(self, found: Found | None) -> _Step:
        if found is not None:
            self._claim.found(found)
        return METHODS[self._policy.auth_type](self)

    def _trust(self) -> _Step:
        if self._claim.is_strangers:
            # There is no password to hide it behind; these are PgBouncer's words for either.
            words = "no such user" if self._claim.was_looked_up else '"trust" authentication failed'
            raise LoginRefused(words, log=no_such_user(self.user))
        return State.CLOSED, (self._claim.accept(),)

    def _cert(self) -> _Step:
        certificate = self._certificate
        if certificate is None:
            complaint = "TLS client certificate required"
        elif self._claim.is_strangers:
            complaint = no_such_user(self.user)
        elif self.user not in certificate.names:
            complaint = f"TLS certificate name mismatch: {self.user!r} is not among {sorted(certificate.names)}"
        else:
            return State.CLOSED, (self._claim.accept(),)
        raise LoginRefused("certificate authentication failed", log=complaint)

    def _plain(self) -> _Step:
        self._claim.choose(scram=False)
        return State.ASKED, (SendCleartext(),)

    def _md5(self) -> _Step:
        self._claim.choose(scram=False)
        if not offer.speaks_md5(self._claim.secrets):
            return self._offer()
        self._by_md5 = True
        return State.ASKED, (SendMD5(self._nonce[:_SALT]),)

    def _scram(self) -> _Step:
        self._claim.choose(scram=True)
        return self._offer()

    def _offer(self) -> _Step:
        plus = (MECHANISM_PLUS,) if self._channel_binding is not None else ()
        return State.OFFERED, (SendSasl((*plus, MECHANISM)),)

    # Passwords in clear, and MD5.

    def _read_password(self, body: bytes) -> _Step:
        given = parse_password(body)
        self._claim.check_failures()
        if not given:
            raise AuthenticationFailed("empty password returned by client")
        secrets = self._claim.secrets
        if self._by_md5:
            return self._judge(offer.answers_md5(self.user, secrets, self._nonce[:_SALT], given))
        password = given.decode("utf-8", "surrogateescape")
        if offer.is_password(self.user, secrets, password):
            return self._judge(fits=True)
        derivable = offer.derivable(secrets, password)
        if not derivable:
            return self._judge(fits=False)
        self._candidates = [secret for secret, _ in derivable]
        return State.CHECKING, tuple(Derive(derivation) for _, derivation in derivable)

    def _check_password(self, keys: ScramKeys) -> _Step:
        # Others may have failed while it was derived.
        self._claim.check_failures()
        secret = self._candidates.pop(0)
        if hmac.compare_digest(keys.stored_key, secret.stored_key):
            return self._judge(fits=True, proved=secret, keys=keys)
        return (State.CHECKING, ()) if self._candidates else self._judge(fits=False)

    # SCRAM.

    def _challenge(self, body: bytes) -> _Step:
        data, plus = self._initial_response(body)
        offered = offer.scram_offer(self._claim.secrets, *self._policy.salt(self.user))
        assert offered is not None
        self._verifiers = list(offered.verifiers)
        self._exchange = ServerExchange(
            offered.salt, offered.iterations, nonce=self._nonce, channel_binding=self._channel_binding
        )
        challenge = SendSaslContinue(self._exchange.first(data, plus=plus))
        self._owed = len(offered.derivations)
        if not self._owed:
            return State.PROVING, (challenge,)
        return State.DERIVING, (challenge, *map(Derive, offered.derivations))

    def _initial_response(self, body: bytes) -> tuple[bytes, bool]:
        response = parse_sasl_initial_response(body)
        plus = response.mechanism == MECHANISM_PLUS and self._channel_binding is not None
        if not plus and response.mechanism != MECHANISM:
            raise ProtocolError(
                "client selected an invalid SASL authentication mechanism", detail=f"Offered: {MECHANISM}."
            )
        if response.data is None:
            raise ProtocolError("malformed SCRAM message", detail="SASLInitialResponse has no client-first-message.")
        return response.data, plus

    def _hold(self, body: bytes) -> _Step:
        self._held = body
        return State.HOLDING, ()

    def _take_keys(self, keys: ScramKeys) -> _Step:
        self._verifiers.append(keys)
        self._owed -= 1
        return (State.DERIVING if self._owed else State.PROVING), ()

    def _take_keys_and_judge(self, keys: ScramKeys) -> _Step:
        state, _ = self._take_keys(keys)
        return (State.HOLDING, ()) if state is State.DERIVING else self._judge_proof(self._held)

    def _judge_proof(self, body: bytes) -> _Step:
        assert self._exchange is not None
        # Before the proof is looked at: logins begun together would otherwise each have their guess.
        self._claim.check_failures()
        try:
            answer = self._exchange.final(body, *self._verifiers)
        except AuthenticationFailed:
            return self._judge(fits=False)
        state, actions = self._judge(fits=True, proved=self._exchange.proved, keys=self._exchange.keys)
        return state, (SendSaslFinal(answer), *actions)

    def _judge(self, fits: bool, proved: Verifier | None = None, keys: ScramKeys | None = None) -> _Step:
        kind = "password" if self._exchange is None else "SASL"
        return State.CLOSED, (self._claim.judge(kind, fits=fits, proved=proved, keys=keys),)


_Step: TypeAlias = tuple[State, tuple[Action, ...]]

METHODS: Mapping[str, Callable[[Login], _Step]] = {
    "trust": Login._trust,
    "cert": Login._cert,
    "plain": Login._plain,
    "md5": Login._md5,
    "scram-sha-256": Login._scram,
}

TABLE: Mapping[State, Mapping[Event, Callable[..., _Step]]] = {
    State.NEW: {Event.START: Login._begin},
    State.LOOKING: {Event.FOUND: Login._look},
    State.ASKED: {Event.MESSAGE: Login._read_password},
    State.CHECKING: {Event.DERIVED: Login._check_password},
    State.OFFERED: {Event.MESSAGE: Login._challenge},
    State.DERIVING: {Event.MESSAGE: Login._hold, Event.DERIVED: Login._take_keys},
    State.HOLDING: {Event.DERIVED: Login._take_keys_and_judge},
    State.PROVING: {Event.MESSAGE: Login._judge_proof},
    State.CLOSED: {},
}


def _out_of_turn(state: State, event: Event) -> Exception:
    if event is Event.MESSAGE:
        return ProtocolError("unexpected password message")
    return UsageError(f"{event.name} is not possible for a login that is {state.name}")
