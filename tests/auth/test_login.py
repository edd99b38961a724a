"""The login dialogue, move by move: what is sent, what the session is asked for, who gets in, what the others learn."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import UsageError
from pgtrunk.wire.frontend import sasl_initial_response, sasl_response
from pgtrunk_gateway.auth import (
    MD5,
    Accepted,
    Action,
    AuthType,
    ClientExchange,
    Derivation,
    Derive,
    Login,
    LoginPolicy,
    Plain,
    Refused,
    ScramKeys,
    SendSasl,
    SendSaslContinue,
    SendSaslFinal,
    Userlist,
)
from pgtrunk_gateway.auth.login import TABLE, Event, State
from pgtrunk_gateway.auth.scram import mock_salt
from pgtrunk_gateway.errors import AuthenticationFailed, LoginRefused, NotSupported, ProtocolError, TooManyFailures

KEY = b"k" * 32
NONCE = b"server-nonce-18-b."
ITERATIONS = 64
"""Few, for speed."""
USERS = Userlist(
    {
        "plain": Plain("secret"),
        "scram": Derivation("secret", b"sixteen octets..", ITERATIONS).secret(),
        "md5": MD5.of("md5", "secret"),
        "empty": Plain(""),
    }
)
GETS_IN = ("plain", "scram")
DOES_NOT = ("md5", "empty", "unknown")


def make_login(
    user: str,
    auth_type: AuthType = "scram-sha-256",
    users: Userlist | None = USERS,
    waits: list[float] | None = None,
    *,
    asks_query: bool = False,
) -> Login:
    policy = LoginPolicy(auth_type=auth_type, userlist=users, mock_key=KEY, iterations=ITERATIONS)
    delays = iter(waits or ())
    return Login(policy, user, nonce=NONCE, retry_after=lambda: next(delays, 0.0), asks_query=asks_query)


class Client:
    """A client with a password, and the session's part of running derivations."""

    def __init__(self, login: Login, password: str = "secret") -> None:
        self.login = login
        self.password = password
        self.exchange = ClientExchange(nonce=b"c" * 18)
        self.derivation: Derivation | None = None
        self.proof = b""

    def choose(self) -> tuple[Action, ...]:
        self.login.start()
        return self.answer_offer()

    def answer_offer(self) -> tuple[Action, ...]:
        actions = self.login.message(sasl_initial_response("SCRAM-SHA-256", self.exchange.first())[5:])
        for action in actions:
            match action:
                case SendSaslContinue(data):
                    keys = self.exchange.challenge(data, self.password).run()
                    self.proof = sasl_response(self.exchange.final(keys))[5:]
                case Derive(derivation):
                    self.derivation = derivation
        return actions

    def prove(self) -> tuple[Action, ...]:
        return self.login.message(self.proof)

    def derive(self) -> tuple[Action, ...]:
        return self.login.derived(self.derivation.run()) if self.derivation is not None else ()

    def log_in(self) -> tuple[Action, ...]:
        self.choose()
        self.derive()
        return self.prove()


def refusal(actions: tuple[Action, ...]) -> Refused:
    (action,) = actions
    assert isinstance(action, Refused)
    return action


def test_scram_is_offered() -> None:
    assert make_login("plain").start() == (SendSasl(("SCRAM-SHA-256",)),)


@pytest.mark.parametrize("user", GETS_IN)
def test_the_right_password_gets_in(user: str) -> None:
    client = Client(make_login(user))
    final, accepted = client.log_in()
    assert isinstance(final, SendSaslFinal) and isinstance(accepted, Accepted)
    client.exchange.verify(final.data)
    assert (accepted.user, accepted.secret) == (user, USERS.get(user))
    assert client.login.state is State.CLOSED


def test_a_proof_of_a_scram_secret_gives_the_keys_to_log_in_with_elsewhere() -> None:
    _, accepted = Client(make_login("scram")).log_in()
    assert isinstance(accepted, Accepted)
    assert accepted.keys == Derivation("secret", b"sixteen octets..", ITERATIONS).run()
    # Those of a password in clear are made for a salt of ours, which nobody else has.
    _, accepted = Client(make_login("plain")).log_in()
    assert isinstance(accepted, Accepted) and accepted.keys is None


def test_the_keys_may_be_ready_after_the_proof() -> None:
    client = Client(make_login("plain"))
    client.choose()
    assert client.prove() == ()
    final, accepted = client.derive()
    assert isinstance(final, SendSaslFinal) and isinstance(accepted, Accepted)


def test_a_password_in_clear_is_derived_beside_the_dialogue_and_a_secret_is_not() -> None:
    challenge, derive = Client(make_login("plain")).choose()
    assert isinstance(challenge, SendSaslContinue)
    assert derive == Derive(Derivation("secret", mock_salt("plain", KEY), ITERATIONS))
    assert len(Client(make_login("scram")).choose()) == 1


@pytest.mark.parametrize("user", [*GETS_IN, *DOES_NOT])
def test_the_wrong_password_does_not(user: str) -> None:
    error = refusal(Client(make_login(user), "wrong").log_in()).error
    assert type(error) is AuthenticationFailed
    assert (error.sqlstate, error.severity, error.message) == ("28P01", "FATAL", "SASL authentication failed")
    assert (error.detail, error.hint) == (None, None)


@pytest.mark.parametrize("user", DOES_NOT)
@pytest.mark.parametrize("password", ["", "secret", "md5" + "0" * 32])
def test_who_cannot_log_in_does_not_with_any_password(user: str, password: str) -> None:
    refusal(Client(make_login(user), password).log_in())


def test_the_log_tells_what_the_client_is_not_told() -> None:
    said = {user: refusal(Client(make_login(user), "wrong").log_in()).error.log or "" for user in [*GETS_IN, *DOES_NOT]}
    assert said["plain"] == "wrong password for user 'plain'"
    assert said["unknown"] == "no such user: 'unknown'"
    assert "empty password" in said["empty"]
    assert "MD5 secret" in said["md5"] and "SCRAM-SHA-256 secret" in said["md5"]
    assert "\n" not in (refusal(Client(make_login("a\nFATAL: b")).log_in()).error.log or "")


def test_all_users_see_the_same_dialogue() -> None:
    """Number and kind of messages, iteration count, length and stability of the salt."""
    seen = set()
    for user in [*GETS_IN, *DOES_NOT]:
        client, again = Client(make_login(user), "wrong"), Client(make_login(user), "wrong")
        challenge, challenge_again = client.choose()[0], again.choose()[0]
        assert challenge == challenge_again and isinstance(challenge, SendSaslContinue)
        nonce, salt, count = challenge.data.split(b",")
        client.derive()
        seen.add((nonce, len(salt), count, refusal(client.prove()).error.message))
    assert len(seen) == 1


def test_trust_asks_for_no_password_but_the_user_must_be_in_auth_file() -> None:
    for user in ("plain", "scram", "md5", "empty"):
        assert make_login(user, "trust").start() == (Accepted(user, USERS.get(user)),)
    error = refusal(make_login("unknown", "trust").start()).error
    assert type(error) is LoginRefused
    assert (error.sqlstate, error.message) == ("28000", '"trust" authentication failed')
    assert error.log == "no such user: 'unknown'"


def test_trust_without_auth_file_and_any_take_everyone() -> None:
    assert make_login("unknown", "trust", users=None).start() == (Accepted("unknown"),)
    assert make_login("unknown", "any").start() == (Accepted("unknown"),)


def test_scram_without_auth_file_takes_nobody() -> None:
    refusal(Client(make_login("plain", users=None)).log_in())


def test_too_many_failures_are_refused_before_anything_is_offered() -> None:
    error = refusal(make_login("plain", waits=[6.4]).start()).error
    assert isinstance(error, TooManyFailures) and not isinstance(error, AuthenticationFailed)
    assert (error.sqlstate, error.hint) == ("28000", "Try again in 6 s.")
    assert "login_failure_limit" in (error.detail or "")


@pytest.mark.parametrize("user", [*GETS_IN, *DOES_NOT])
def test_failures_meanwhile_count_before_the_proof_is_looked_at(user: str) -> None:
    """Of logins begun together only as many are judged as the limit allows, and the others learn nothing."""
    assert isinstance(refusal(Client(make_login(user, waits=[0.0, 1.0])).log_in()).error, TooManyFailures)


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (b"", ProtocolError, "terminating zero"),
        (b"SCRAM-SHA-256\0", ProtocolError, "too short"),
        (b"secret\0", ProtocolError, "too short"),
        (b"SCRAM-SHA-256\0\0\0\0\5n,,n", ProtocolError, "announces 5"),
        (b"SCRAM-SHA-256\0\xff\xff\xff\xff", ProtocolError, "malformed SCRAM"),
        (b"SCRAM-SHA-256\0\xff\xff\xff\xfen,,", ProtocolError, "announces -2"),
        (b"SCRAM-SHA-256-PLUS\0\0\0\0\0", ProtocolError, "invalid SASL authentication mechanism"),
        (b"\0\0\0\0\0", ProtocolError, "invalid SASL authentication mechanism"),
        (sasl_initial_response("SCRAM-SHA-256", b"garbage")[5:], ProtocolError, "malformed SCRAM"),
        (sasl_initial_response("SCRAM-SHA-256", b"p=tls-exporter,,n=,r=x")[5:], NotSupported, "channel binding"),
    ],
)
@pytest.mark.parametrize("user", ["plain", "scram", "unknown"])
def test_a_broken_first_message(user: str, body: bytes, error: type[Exception], said: str) -> None:
    login = make_login(user)
    login.start()
    refused = refusal(login.message(body)).error
    assert type(refused) is error and said in refused.message
    assert refused.severity == "FATAL"


def test_a_broken_second_message_is_no_failed_login() -> None:
    client = Client(make_login("plain"))
    client.choose()
    client.derive()
    assert type(refusal(client.login.message(b"garbage")).error) is ProtocolError


def test_a_second_proof_while_the_first_is_held() -> None:
    client = Client(make_login("plain"))
    client.choose()
    client.prove()
    assert type(refusal(client.prove()).error) is ProtocolError
    assert client.derive() == ()  # comes too late, and harms nobody


def test_after_the_end_nothing_is_said() -> None:
    client = Client(make_login("plain"))
    client.log_in()
    assert client.login.start() == client.prove() == client.derive() == ()


# -- the table -------------------------------------------------------------------------------------------------------

LEGAL = {
    (State.NEW, Event.START),
    (State.LOOKING, Event.FOUND),
    (State.ASKED, Event.MESSAGE),
    (State.CHECKING, Event.DERIVED),
    (State.OFFERED, Event.MESSAGE),
    (State.DERIVING, Event.MESSAGE),
    (State.DERIVING, Event.DERIVED),
    (State.HOLDING, Event.DERIVED),
    (State.PROVING, Event.MESSAGE),
}


def login_in(state: State) -> Client:
    if state in (State.ASKED, State.CHECKING):
        client = Client(make_login("scram", "plain"))
        client.login.start()
        client.proof = b"secret\0"
        if state is State.CHECKING:
            client.prove()
        return client
    if state is State.LOOKING:
        client = Client(make_login("somebody", asks_query=True))
        client.login.start()
        return client
    client = Client(make_login("scram" if state is State.PROVING else "plain"))
    if state is State.OFFERED:
        client.login.start()
    elif state is not State.NEW:
        client.choose()
    if state in (State.HOLDING, State.CLOSED):
        client.prove()
    if state is State.CLOSED:
        client.derive()
    assert client.login.state is state
    return client


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=lambda value: value.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    client = login_in(state)
    moves: dict[Event, Callable[[], tuple[Action, ...]]] = {
        Event.START: client.login.start,
        Event.FOUND: lambda: client.login.found(None),
        Event.MESSAGE: client.prove,
        Event.DERIVED: lambda: client.login.derived(ScramKeys(b"c" * 32, b"s" * 32)),
    }
    do = moves[event]
    assert ((state, event) in LEGAL) is (event in TABLE[state])
    if (state, event) in LEGAL:
        do()
        assert client.login.state is not state
    elif state is State.CLOSED:
        assert do() == ()
    elif event is Event.MESSAGE:
        assert type(refusal(do()).error) is ProtocolError
    else:
        with pytest.raises(UsageError):
            do()


def test_the_state_shows_in_the_log() -> None:
    assert repr(login_in(State.DERIVING).login) == "<Login of 'plain' DERIVING>"


@given(st.sampled_from([*GETS_IN, *DOES_NOT]), st.lists(st.one_of(st.binary(max_size=80), st.none()), max_size=6))
def test_no_client_gets_in_by_garbage(user: str, moves: list[bytes | None]) -> None:
    """None stands for the right message at that point, but for its proof."""
    client = Client(make_login(user), "wrong")
    actions = list(client.login.start())
    chosen = False
    for move in moves:
        if move is not None:
            actions += client.login.message(move)
        elif chosen:
            actions += client.prove() + client.derive()
        else:
            actions += client.answer_offer()
            chosen = True
    assert not any(isinstance(action, Accepted) for action in actions)
    assert sum(isinstance(action, Refused) for action in actions) <= 1


# -- early data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_all_that_a_client_says_is_a_proof_but_for_the_first_message_of_scram(state: State) -> None:
    """Only that may be taken from what may be a replay."""
    login = make_login("scram")
    login.state = state
    assert login.awaits_proof is (state is not State.OFFERED)
