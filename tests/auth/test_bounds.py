"""What comes from outside costs time and memory in proportion to its size, whatever it is: each method, each parser.

The inputs are such that a parser which tries again and again would not end within the time that a test has.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.logins import ITERATIONS, KEY, NONCE, secret_of
from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.frontend import sasl_initial_response
from pgtrunk_gateway.auth import (
    MD5,
    Accepted,
    AuthType,
    ClientExchange,
    Derive,
    Found,
    Login,
    LoginPolicy,
    LookUp,
    Plain,
    Refused,
    ServerExchange,
    Userlist,
    parse_secret,
)
from pgtrunk_gateway.errors import BackendRefused, ConfigError, GatewayError

LARGE = 4 << 20
SECRET = secret_of("secret")
USERS = Userlist({"plain": Plain("secret"), "scram": SECRET, "md5": MD5.of("md5", "secret"), "empty": Plain("")})


@pytest.mark.parametrize(
    "line",
    [
        b'"' * LARGE,
        b'"a" ' + b'"' * LARGE,
        b'"a" "b" previous ' + b'"' * LARGE,
        b'""' * (LARGE // 2) + b"x",
        b'"a"' + b" " * LARGE,
        b'"a" "b"' + b" " * LARGE + b"previous",
        b'"a" "b" previous' + b" " * LARGE,
        b'"a" "b" previous "' + b'""' * (LARGE // 2),
        b" " * LARGE + b"x",
        b";" * LARGE,
        b"\n" * (LARGE // 8),
        b'"SCRAM-SHA-256$' + b"1" * LARGE,
    ],
    ids=range(12),
)
def test_a_line_of_auth_file_without_end(line: bytes) -> None:
    with contextlib.suppress(ConfigError):
        Userlist.parse(line, "users.txt")


@pytest.mark.parametrize("filling", ["1", "$", ":", "A", "=", "A=", "1:A$A:"])
def test_a_secret_without_end(filling: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_secret("SCRAM-SHA-256$" + filling * (LARGE // len(filling)))


@pytest.mark.parametrize("filling", [b"a=x,", b",", b"n,,", b"p=", b"=", b"r=x,", b"A" * 1000])
def test_scram_messages_without_end(filling: bytes) -> None:
    for head in (
        b"",
        b"n,,n=,r=x,",
        b"p=tls-server-end-point,,n=,r=x,",
        b"c=biws,r=x,",
        b"r=x,s=AAAA,i=1,",
        b"v=AAAA,",
    ):
        message = head + filling * (LARGE // len(filling))
        with pytest.raises(GatewayError):
            ServerExchange(b"salt", 1, nonce=NONCE, channel_binding=b"hash").first(message)
        with pytest.raises(GatewayError):
            ServerExchange(b"salt", 1, nonce=NONCE).final(message, SECRET)
        for read in (ClientExchange(nonce=NONCE).asked, ClientExchange(nonce=NONCE).verify):
            with pytest.raises((ProtocolViolation, BackendRefused)):
                read(message)


tokens = st.lists(
    st.sampled_from(['"', '""', '"a"', '"b"', " ", "\t", "previous", "\n", ";", "\0", "x", "SCRAM-SHA-256$"])
)


@given(tokens)
def test_no_auth_file_is_too_odd(parts: list[str]) -> None:
    try:
        users = Userlist.parse("".join(parts).encode(), "users.txt")
    except ConfigError as error:
        assert error.line is not None
    else:
        assert all(len(users.secrets(user) or ()) in (1, 2) for user in ("a", "b", "") if user in users)


flags = st.sampled_from([b"n,,", b"y,,", b"p=tls-server-end-point,,", b"p=tls-unique,,", b"p=,,", b"n,a=x,", b""])
attributes = st.lists(st.sampled_from([b"n=", b"n=app", b"r=x", b"r=", b"m=1", b"a=b", b"c=biws", b"p=AAAA", b"\0"]))


@given(flags, attributes, st.booleans(), st.sampled_from([None, b"hash"]))
def test_no_first_message_is_too_odd(flag: bytes, parts: list[bytes], plus: bool, binding: bytes | None) -> None:
    exchange = ServerExchange(b"salt", 1, nonce=NONCE, channel_binding=binding)
    try:
        exchange.first(flag + b",".join(parts), plus=plus)
    except GatewayError as error:
        assert error.severity == "FATAL"
    else:
        # Bound only where both can be, and said so; unbound only by one who does not think that we cannot.
        assert plus is flag.startswith(b"p") and (binding is not None or not plus)
        assert binding is None or flag[:1] != b"y"
    assert exchange.keys is None


PASSWORDS = [b"", b"wrong", b"secret\0", b"secret", b"md5" + b"0" * 32, SECRET.encode().encode()]
moves = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.sampled_from([password + b"\0" for password in PASSWORDS if password != b"secret"]),
        st.just(sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=x")[5:]),
        st.just(sasl_initial_response("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=x")[5:]),
    ),
    max_size=6,
)


@given(
    st.sampled_from(["plain", "md5", "scram-sha-256", "cert"]),
    st.sampled_from(["plain", "scram", "md5", "empty", "unknown"]),
    st.sampled_from([None, Found("other", ()), Found("other", (Plain("hidden"),)), Found("other", (SECRET,))]),
    moves,
    st.booleans(),
)
def test_nobody_gets_in_by_any_method_without_the_password(
    auth_type: AuthType, user: str, found: Found | None, said: list[bytes], bound: bool
) -> None:
    policy = LoginPolicy(auth_type=auth_type, userlist=USERS, mock_key=KEY, iterations=ITERATIONS)
    login = Login(
        policy,
        user,
        nonce=NONCE,
        retry_after=lambda: 0.0,
        asks_query=True,
        channel_binding=b"hash" if bound else None,
    )
    actions = list(login.start())
    seen = []
    for message in [None, *said]:
        if message is not None:
            actions += login.message(message)
        while actions:
            action = actions.pop(0)
            seen.append(action)
            match action:
                case LookUp():
                    actions += login.found(found)
                case Derive(derivation):
                    actions += login.derived(derivation.run())
                case _:
                    pass
    assert not any(isinstance(action, Accepted) for action in seen)
    assert sum(isinstance(action, Refused) for action in seen) <= 1
