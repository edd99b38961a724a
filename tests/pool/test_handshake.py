"""The gateway's login at Postgres, message by message: trust, SCRAM, what is refused, and what is no login at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import HEADER_SIZE, encode, messages
from pgtrunk.wire.frontend import parse_sasl_initial_response
from pgtrunk.wire.startup import StartupMessage, parse_startup
from pgtrunk_gateway.auth import NONCE_LENGTH
from pgtrunk_gateway.auth.scram import Derivation
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.errors import BackendRefused, GatewayError
from pgtrunk_gateway.pool.handshake import Derive, Handshake, Send
from pgtrunk_gateway.pool.target import Target

TARGET = Target(host="127.0.0.1", port=5432, dbname="shop", user="app", password="secret")
WELCOME = (
    b.authentication_ok()
    + b.parameter_status("server_version", "18.0")
    + b.parameter_status("TimeZone", "UTC")
    + b.backend_key_data(4711, b"key!")
    + b.ready()
)


def handshake(password: str | None = "secret") -> Handshake:
    target = Target(host="127.0.0.1", port=5432, dbname="shop", user="app", password=password)
    return Handshake(target, nonce=bytes(NONCE_LENGTH))


def converse(login: Handshake, data: bytes, size: int = 1 << 20) -> bytes:
    """Feeds ``data`` in pieces -> what the gateway sends in answer; derivations are run at once."""
    sent = b""
    for at in range(0, len(data), size):
        for step in login.feed(data[at : at + size]):
            match step:
                case Send(answer):
                    sent += answer
                case Derive(derivation):
                    sent += login.derived(derivation.run()).data
    return sent


class Scram:
    """Postgres's side of SCRAM for one user."""

    def __init__(self, password: str = "secret") -> None:
        self.keys = Derivation(password, b"salt" * 4, 4096).run()
        self.exchange = ServerExchange(b"salt" * 4, 4096, nonce=b"n" * NONCE_LENGTH)

    def offer(self) -> bytes:
        return b.authentication_sasl(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"])

    def challenge(self, first: bytes) -> bytes:
        choice = parse_sasl_initial_response(first[HEADER_SIZE:])
        assert choice.mechanism == "SCRAM-SHA-256"
        assert choice.data is not None
        return b.authentication_sasl_continue(self.exchange.first(choice.data))

    def final(self, proof: bytes) -> bytes:
        return b.authentication_sasl_final(self.exchange.final(proof[HEADER_SIZE:], self.keys))


sizes = pytest.mark.parametrize("size", [1, 3, 1 << 20])


def test_the_startup_packet() -> None:
    parsed = parse_startup(handshake().start())
    assert parsed is not None
    assert parsed[0] == StartupMessage(parameters={"user": "app", "database": "shop"})


@sizes
def test_trust(size: int) -> None:
    login = handshake(None)
    assert converse(login, b.notice("00000", "hello") + WELCOME, size) == b""
    assert login.done
    assert login.parameters == {"server_version": "18.0", "TimeZone": "UTC"}
    assert login.key == b.BackendKeyData(4711, b"key!")


def test_what_comes_behind_it_is_kept() -> None:
    login = handshake(None)
    behind = b.parameter_status("TimeZone", "GMT") + b"E\0\0"
    converse(login, WELCOME + behind)
    assert login.parameters["TimeZone"] == "UTC"
    assert login.rest() == behind


def test_a_server_without_a_key() -> None:
    login = handshake(None)
    converse(login, b.authentication_ok() + b.ready())
    assert login.key is None


@sizes
def test_scram(size: int) -> None:
    login, server = handshake(), Scram()
    proof = converse(login, server.challenge(converse(login, server.offer(), size)), size)
    assert converse(login, server.final(proof) + WELCOME, size) == b""
    assert login.done


def test_a_server_that_does_not_know_the_secret() -> None:
    """It could be anybody: nothing that it says afterwards is believed."""
    login, server = handshake(), Scram()
    converse(login, server.challenge(converse(login, server.offer())))
    with pytest.raises((GatewayError, ProtocolViolation)):
        converse(login, b.authentication_sasl_final(b"v=" + b"A" * 43 + b"=") + WELCOME)
    assert not login.done


@pytest.mark.parametrize("early", [b.authentication_ok(), WELCOME])
def test_a_server_that_ends_scram_without_proof(early: bytes) -> None:
    for steps in (1, 2):
        login, server = handshake(), Scram()
        first = converse(login, server.offer())
        if steps == 2:
            converse(login, server.challenge(first))
        with pytest.raises(ProtocolViolation, match="without proving"):
            converse(login, early)


@pytest.mark.parametrize(
    "said",
    [b.authentication_sasl_continue(b"r=x,s=c2FsdA==,i=4096"), b.authentication_sasl_final(b"v=x")],
)
def test_scram_out_of_turn(said: bytes) -> None:
    with pytest.raises((ProtocolViolation, GatewayError)):
        converse(handshake(), said)


def test_without_a_password() -> None:
    with pytest.raises(BackendRefused) as raised:
        converse(handshake(None), Scram().offer())
    assert raised.value.sqlstate == "28P01"
    assert "no password for user 'app'" in raised.value.message
    assert raised.value.hint is not None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (encode(b"R", b"\0\0\0\3"), "password in clear"),
        (encode(b"R", b"\0\0\0\5salt"), "md5"),
        (encode(b"R", b"\0\0\0\7"), "GSSAPI"),
        (encode(b"R", b"\0\0\0\x09"), "SSPI"),
        (encode(b"R", b"\0\0\0\x63"), "method 99"),
        (b.authentication_sasl(["OAUTHBEARER"]), "OAUTHBEARER"),
        (b.authentication_sasl([]), "which the gateway does not speak"),
    ],
)
def test_methods_that_the_gateway_does_not_speak(request_: bytes, words: str) -> None:
    with pytest.raises(BackendRefused) as raised:
        converse(handshake(), request_)
    assert raised.value.sqlstate == "0A000"
    assert words in raised.value.message
    assert "secret" not in str(raised.value)


@sizes
def test_a_refusal_is_told_in_the_servers_own_words(size: int) -> None:
    refusal = b.error("3D000", 'database "shop" does not exist', severity="FATAL", detail="d", hint="h")
    with pytest.raises(BackendRefused) as raised:
        converse(handshake(), refusal, size)
    error = raised.value
    assert (error.sqlstate, error.message, error.detail, error.hint) == (
        "3D000",
        'database "shop" does not exist',
        "d",
        "h",
    )
    assert error.log == 'server login failed: FATAL database "shop" does not exist'


@pytest.mark.parametrize(
    "said",
    [
        encode(b"D", b"\0\0"),
        encode(b"Q", b"select 1\0"),
        encode(b"R"),
        encode(b"K", b"\0\0\0\1"),
        encode(b"S", b"no value\0"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"S\0\0\0\3",
        b"S\x7f\xff\xff\xff",
        b"N",
    ],
)
def test_what_is_no_login(said: bytes) -> None:
    login = handshake()
    if said == b"N":
        assert converse(login, said) == b""
        return
    with pytest.raises(ProtocolViolation):
        converse(login, said)


def _answers() -> Iterator[bytes]:
    server = Scram()
    login = handshake()
    first = converse(login, server.offer())
    yield server.offer()
    yield server.challenge(first)
    yield WELCOME
    yield from (WELCOME[start:end] for _, start, end in messages(WELCOME))


@given(st.lists(st.sampled_from(list(_answers())) | st.binary(max_size=20), max_size=6))
def test_nothing_but_refusals_and_violations(answers: list[bytes]) -> None:
    login = handshake()
    with contextlib.suppress(ProtocolViolation, BackendRefused):
        converse(login, b"".join(answers))


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(TARGET)
    assert repr(Send(b"proof")) == "Send()"
