"""The gateway's login at Postgres, message by message: each method, pass-through, what is refused, and nonsense."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import HEADER_SIZE, encode, messages
from pgtrunk.wire.frontend import parse_sasl_initial_response, password
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, StartupMessage, parse_startup
from pgtrunk_gateway.auth import MD5, NONCE_LENGTH, Plain, ScramKeys, Secret
from pgtrunk_gateway.auth.scram import Derivation
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.errors import BackendRefused, GatewayError
from pgtrunk_gateway.pool.handshake import Derive, Handshake, Send
from pgtrunk_gateway.pool.target import Credentials, Target

TARGET = Target(host="127.0.0.1", port=5432, dbname="shop", user="app", secret=Plain("secret"))
WELCOME = (
    b.authentication_ok()
    + b.parameter_status("server_version", "18.0")
    + b.parameter_status("TimeZone", "UTC")
    + b.backend_key_data(4711, b"key!")
    + b.ready()
)


def handshake(password: str | None = "secret") -> Handshake:
    return log_in_with(None if password is None else Plain(password))


def log_in_with(
    secret: Secret | None, keys: ScramKeys | None = None, *, channel_binding: bytes | None = None
) -> Handshake:
    """The login of a user whose secret is in the configuration; a client has proved ``keys``."""
    target = Target(host="127.0.0.1", port=5432, dbname="shop", user="app", secret=secret)
    if secret is not None:
        target = target.entrust(secret, keys)
    return Handshake(target, nonce=bytes(NONCE_LENGTH), channel_binding=channel_binding)


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


def test_the_startup_packet_asks_for_a_protocol() -> None:
    login = Handshake(TARGET, nonce=bytes(NONCE_LENGTH), protocol=PROTOCOL_3_2)
    parsed = parse_startup(login.start())
    assert parsed is not None
    assert parsed[0] == StartupMessage(PROTOCOL_3_2, {"user": "app", "database": "shop"})


@sizes
@pytest.mark.parametrize("newest", [PROTOCOL_3_0, PROTOCOL_3_0 + 1, PROTOCOL_3_2])
def test_a_server_that_negotiates(newest: int, size: int) -> None:
    login = Handshake(TARGET, nonce=bytes(NONCE_LENGTH), protocol=PROTOCOL_3_2)
    assert not login.understood
    # Nobody has asked for an option; a server that names some all the same may be served.
    converse(login, b.negotiate_protocol(newest, ["_pq_.a"]) + WELCOME, size)
    assert login.done and login.understood
    assert login.protocol == newest


@pytest.mark.parametrize(
    ("asked", "told"),
    [(PROTOCOL_3_0, PROTOCOL_3_2), (PROTOCOL_3_2, PROTOCOL_3_2 + 1), (PROTOCOL_3_2, 2 << 16), (PROTOCOL_3_2, 4 << 16)],
)
def test_a_negotiation_up_or_back_beyond_3_0(asked: int, told: int) -> None:
    login = Handshake(TARGET, nonce=bytes(NONCE_LENGTH), protocol=asked)
    with pytest.raises(ProtocolViolation, match=r"the server wants protocol \d\.\d, where 3\.\d was asked for"):
        converse(login, b.negotiate_protocol(told, []))


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        (b.authentication_ok(), True),
        (b.authentication_sasl(["SCRAM-SHA-256"]), True),
        (b.notice("00000", "hello"), True),
        (b.error("28000", "no"), True),
        (b.error("08P01", "no"), False),
        (b.error("0A000", "no"), False),
        (b.authentication_ok() + b.error("08P01", "no"), True),
        (b.error("28000", "no")[:-1], False),
        (encode(b"D", b"\0\0"), False),
        (b"HTTP/1.1 400 Bad Request", False),
        (b"", False),
    ],
)
def test_whether_the_startup_packet_was_understood(said: bytes, understood: bool) -> None:
    login = handshake()
    with contextlib.suppress(ProtocolViolation, BackendRefused):
        converse(login, said)
    assert login.understood is understood


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


CLEAR = b.authentication_cleartext_password()
SALTED = b.authentication_md5_password(b"salt")
OFFER = b.authentication_sasl(["SCRAM-SHA-256"])
NO_KEYS = "password is SCRAM secret but client authentication did not provide SCRAM keys"
STORED = Derivation("secret", b"odd", 7).secret()
KEYS = Derivation("secret", b"odd", 7).run()


@sizes
def test_a_password_in_clear(size: int) -> None:
    login = handshake()
    assert converse(login, CLEAR, size) == password(b"secret")
    assert login.gave_password
    converse(login, WELCOME, size)
    assert login.done


@pytest.mark.parametrize("secret", [Plain("secret"), MD5.of("app", "secret")])
def test_md5(secret: Secret) -> None:
    login = log_in_with(secret)
    # md5(md5("secretapp") + "salt"), as PostgreSQL computes it.
    assert converse(login, SALTED) == password(b"md5" + md5(md5(b"secretapp") + b"salt"))
    assert not login.gave_password


def md5(data: bytes) -> bytes:
    return hashlib.md5(data).hexdigest().encode()


@pytest.mark.parametrize(
    ("secret", "asked", "log"),
    [
        (MD5.of("app", "secret"), CLEAR, "cannot do cleartext authentication: wrong password type"),
        (STORED, CLEAR, "cannot do cleartext authentication: wrong password type"),
        (STORED, SALTED, "cannot do MD5 authentication: wrong password type"),
        (MD5.of("app", "secret"), OFFER, "cannot do SCRAM authentication: wrong password type"),
        (
            STORED,
            OFFER,
            f"cannot do SCRAM authentication: {NO_KEYS}",
        ),
    ],
)
def test_a_secret_that_cannot_serve_the_method(secret: Secret, asked: bytes, log: str) -> None:
    """In PgBouncer's words."""
    with pytest.raises(BackendRefused) as raised:
        converse(log_in_with(secret), asked)
    assert (raised.value.message, raised.value.log) == ("server login failed: wrong password type", log)


@pytest.mark.parametrize("salt", [b"", b"sal", b"salty"])
def test_an_md5_salt_that_is_none(salt: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        converse(handshake(), b.authentication_md5_password(salt))


@sizes
def test_pass_through(size: int) -> None:
    login, exchange = log_in_with(STORED, KEYS), ServerExchange(b"odd", 7, nonce=b"n" * NONCE_LENGTH)
    first = parse_sasl_initial_response(converse(login, OFFER, size)[HEADER_SIZE:])
    assert first.data is not None
    proof = converse(login, b.authentication_sasl_continue(exchange.first(first.data)), size)
    final = b.authentication_sasl_final(exchange.final(proof[HEADER_SIZE:], STORED))
    assert converse(login, final + WELCOME, size) == b""
    assert login.done


@pytest.mark.parametrize(("salt", "iterations"), [(b"odder", 7), (b"odd", 8)])
def test_pass_through_to_a_server_with_another_secret(salt: bytes, iterations: int) -> None:
    login, exchange = log_in_with(STORED, KEYS), ServerExchange(salt, iterations, nonce=b"n" * NONCE_LENGTH)
    first = parse_sasl_initial_response(converse(login, OFFER)[HEADER_SIZE:])
    assert first.data is not None
    with pytest.raises(BackendRefused, match="the server has another SCRAM secret of user 'app'"):
        converse(login, b.authentication_sasl_continue(exchange.first(first.data)))


@pytest.mark.parametrize(
    ("offered", "binding", "chosen", "flag"),
    [
        (["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"], b"hash", "SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,"),
        (["SCRAM-SHA-256"], b"hash", "SCRAM-SHA-256", b"y,,"),
        (["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"], None, "SCRAM-SHA-256", b"n,,"),
    ],
)
def test_channel_binding(offered: list[str], binding: bytes | None, chosen: str, flag: bytes) -> None:
    login = log_in_with(Plain("secret"), channel_binding=binding)
    first = parse_sasl_initial_response(converse(login, b.authentication_sasl(offered))[HEADER_SIZE:])
    assert first.mechanism == chosen
    assert first.data is not None and first.data.startswith(flag)


def test_what_a_client_has_proved_counts_for_as_long_as_its_secret() -> None:
    target = Target(host="h", port=1, dbname="d", user="app", secret=STORED)
    proved = target.entrust(STORED, KEYS)
    assert proved == target
    assert proved.credentials == Credentials(STORED, KEYS)
    assert proved.entrust(STORED, None) is proved
    assert repr(KEYS.client_key) not in repr(proved)
    # A reload: the same secret, another one, none at all.
    assert target.succeeding(proved).credentials == Credentials(STORED, KEYS)
    other = Derivation("other", b"odd", 7).secret()
    for secret in (other, None, Plain("secret")):
        changed = Target(host="h", port=1, dbname="d", user="app", secret=secret).succeeding(proved)
        assert changed.credentials == Credentials(secret)
    # A client's secret never takes the place of the one in the configuration.
    assert Target(host="h", port=1, dbname="d", user="app", secret=Plain("secret")).entrust(
        STORED, KEYS
    ).credentials == (Credentials(Plain("secret")))
    # A user of auth_query: nothing is in the configuration.
    found = Target(host="h", port=1, dbname="d", user="app").entrust(STORED, KEYS)
    assert found.credentials == Credentials(STORED, KEYS)
    assert found.entrust(other, None).credentials == Credentials(other)


@pytest.mark.parametrize("asked", [OFFER, CLEAR, SALTED])
@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_password(secret: str | None, asked: bytes) -> None:
    with pytest.raises(BackendRefused) as raised:
        converse(handshake(secret), asked)
    assert raised.value.sqlstate == "28P01"
    assert "no password for user 'app'" in raised.value.message
    assert raised.value.hint is not None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
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
    yield b.authentication_cleartext_password()
    yield b.authentication_md5_password(b"salt")
    yield b.authentication_sasl_final(b"e=no")
    yield b.error("57P03", "starting up")
    yield encode(b"E", b"\0")
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
