"""The server's side of SCRAM: the RFC's own example, an independent client, and all that a client may get wrong."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient

from pgtrunk_gateway.auth import ClientExchange, Derivation, ScramSecret, ServerExchange
from pgtrunk_gateway.auth.scram_server import MAX_MESSAGE
from pgtrunk_gateway.errors import AuthenticationFailed, GatewayError, LoginRefused, NotSupported, ProtocolError

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SECRET = Derivation("pencil", SALT, 4096).secret()
NONCE = b"server-nonce-18-b."
FIRST = b"n,,n=,r=clientnonce"


def exchange(secret: ScramSecret = SECRET) -> ServerExchange:
    return ServerExchange(secret.salt, secret.iterations, nonce=NONCE)


def final_for(first_answer: bytes, *, binding: bytes = b"biws", extra: bytes = b"") -> bytes:
    """A client-final-message that is right but for its proof."""
    nonce = first_answer.split(b",")[0]
    return b"c=%b,%b%b,p=%b" % (binding, nonce, extra, base64.b64encode(bytes(32)))


def test_the_example_of_rfc_7677() -> None:
    server = exchange()
    server._nonce = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.final(proof, SECRET) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.keys == Derivation("pencil", SALT, 4096).run()


def test_an_independent_client_logs_in() -> None:
    client = ScramClient(["SCRAM-SHA-256"], "whoever", "pencil")
    server = exchange()
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    client.set_server_final(server.final(client.get_client_final().encode(), SECRET).decode())


@pytest.mark.parametrize("password", ["", "Pencil", "pencil ", "p\u00adencilX"])
def test_a_wrong_password_fails(password: str) -> None:
    client, server = ClientExchange(nonce=NONCE), exchange()
    derivation = client.challenge(server.first(client.first()), password)
    with pytest.raises(AuthenticationFailed):
        server.final(client.final(derivation.run()), SECRET)
    assert server.keys is None


def test_a_proof_is_good_for_its_own_exchange_only() -> None:
    client, server = ClientExchange(nonce=NONCE), exchange()
    proof = client.final(client.challenge(server.first(client.first()), "pencil").run())
    other = ServerExchange(SALT, 4096, nonce=b"another nonce")
    other.first(client.first())
    with pytest.raises(ProtocolError, match="invalid SCRAM response"):
        other.final(proof, SECRET)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,n=,r=x",
        b"y,,n=,r=x",
        b"n,,n=user,r=x",
        b"n,,n=m=C3=BCller=2C,r=x",
        "n,,n=müller,r=x".encode(),
        b"n,,n=,r=!\"#$%&'()*+-./~",
        b"n,,n=,r=x,a=extension,Z=",
    ],
)
def test_client_first_messages_that_are_good(message: bytes) -> None:
    nonce = message.split(b",r=")[1].split(b",")[0]
    assert exchange().first(message).startswith(b"r=%b%b,s=" % (nonce, base64.b64encode(NONCE)))


@pytest.mark.parametrize(
    ("message", "error", "said"),
    [
        (b"", ProtocolError, "malformed"),
        (b"n", ProtocolError, "malformed"),
        (b"n,,", ProtocolError, "malformed"),
        (b"x,,n=,r=x", ProtocolError, "malformed"),
        (b"n,x,n=,r=x", ProtocolError, "malformed"),
        (b"n,,r=x", ProtocolError, "malformed"),
        (b"n,,n=,r=", ProtocolError, "malformed"),
        (b"n,,n=,r=x y", ProtocolError, "malformed"),
        (b"n,,n=,r=x\n", ProtocolError, "malformed"),
        (b"n,,n=,r=x\0", ProtocolError, "malformed"),
        (b"n,,n=\0,r=x", ProtocolError, "malformed"),
        (b"n,,n=,r=\xc3\xa4", ProtocolError, "malformed"),
        (b"n,,n=,r=x,", ProtocolError, "malformed"),
        (b"n,,n=,r=x,1=y", ProtocolError, "malformed"),
        (b"n,,n=,r=" + b"x" * MAX_MESSAGE, ProtocolError, "malformed"),
        (b"p=tls-server-end-point,,n=,r=x", NotSupported, "channel binding"),
        (b"n,a=admin,n=,r=x", NotSupported, "authorization identity"),
        (b"n,,m=ext,n=,r=x", NotSupported, "mandatory SCRAM extension"),
    ],
)
def test_client_first_messages_that_are_not(message: bytes, error: type[GatewayError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        exchange().first(message)
    assert caught.value.severity == "FATAL"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda good: b"",
        lambda good: good.rpartition(b",p=")[0],
        lambda good: good + b",x=y",
        lambda good: good + b"\0",
        lambda good: good + b"=",
        lambda good: good[:-1],
        lambda good: good.rpartition(b",p=")[0] + b",p=AAAA",
        lambda good: good.replace(b",p=", b",p=A"),
        lambda good: good.replace(b"c=biws", b"c=eSws"),
        lambda good: good.replace(b"c=biws", b"c="),
        lambda good: good.replace(b"r=client", b"r=tneilc"),
        lambda good: good.replace(b",p=", b"x,p="),
        lambda good: good.replace(b",p=", b"," + b"x=" * 500 + b",p="),
    ],
)
def test_client_final_messages_that_are_not(spoil: object) -> None:
    server = exchange()
    good = final_for(server.first(FIRST))
    assert callable(spoil)
    with pytest.raises(ProtocolError):
        server.final(spoil(good), SECRET)


@pytest.mark.parametrize(("first", "binding"), [(b"n,,n=,r=x", b"biws"), (b"y,,n=,r=x", b"eSws")])
def test_the_binding_is_that_of_the_first_message(first: bytes, binding: bytes) -> None:
    server = exchange()
    with pytest.raises(AuthenticationFailed):
        server.final(final_for(server.first(first), binding=binding, extra=b",x=ext"), SECRET)


messages = st.one_of(st.binary(max_size=2000), st.text("nyp=,rcavbiw\0\n+/AZ").map(str.encode))


@given(messages)
def test_no_first_message_is_too_odd(message: bytes) -> None:
    try:
        assert len(exchange().first(message)) < 2 * MAX_MESSAGE
    except GatewayError as error:
        assert error.severity == "FATAL"


@given(messages, st.integers(0, 200))
def test_no_final_message_gets_in(message: bytes, cut: int) -> None:
    server = exchange()
    good = final_for(server.first(FIRST))
    for tried in (message, good[:cut] + message, good[:cut] + message + good[cut:]):
        with pytest.raises((ProtocolError, AuthenticationFailed)):
            server.final(tried, SECRET)


# -- channel binding -------------------------------------------------------------------------------------------------

CERTIFICATE = b"hash of our certificate"
PLUS = b"p=tls-server-end-point,,n=,r=clientnonce"


def bound(certificate: bytes | None = CERTIFICATE) -> ServerExchange:
    return ServerExchange(SECRET.salt, SECRET.iterations, nonce=NONCE, channel_binding=certificate)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(CERTIFICATE, CERTIFICATE), (None, CERTIFICATE), (CERTIFICATE, None), (None, None)]
)
def test_a_login_is_bound_where_both_can(theirs: bytes | None, ours: bytes | None) -> None:
    offered = ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"] if ours else ["SCRAM-SHA-256"]
    client, server = ClientExchange(nonce=NONCE, channel_binding=theirs), bound(ours)
    chosen = client.choose(offered) or ""
    assert chosen == ("SCRAM-SHA-256-PLUS" if theirs and ours else "SCRAM-SHA-256")
    assert client.first()[:1] == (b"n" if theirs is None else b"p" if ours else b"y")
    challenge = server.first(client.first(), plus=chosen.endswith("-PLUS"))
    client.verify(server.final(client.final(client.challenge(challenge, "pencil").run()), SECRET))


def test_an_independent_client_is_bound() -> None:
    client = ScramClient(
        ["SCRAM-SHA-256-PLUS"], "whoever", "pencil", channel_binding=("tls-server-end-point", CERTIFICATE)
    )
    server = bound()
    client.set_server_first(server.first(client.get_client_first().encode(), plus=True).decode())
    client.set_server_final(server.final(client.get_client_final().encode(), SECRET).decode())


def test_someone_between_with_another_certificate() -> None:
    client, server = ClientExchange(nonce=NONCE, channel_binding=b"hash of his certificate"), bound()
    client.choose(["SCRAM-SHA-256-PLUS"])
    challenge = server.first(client.first(), plus=True)
    with pytest.raises(LoginRefused, match="SCRAM channel binding check failed"):
        server.final(client.final(client.challenge(challenge, "pencil").run()), SECRET)


def test_someone_between_who_takes_the_offer_away() -> None:
    client = ClientExchange(nonce=NONCE, channel_binding=CERTIFICATE)
    client.choose(["SCRAM-SHA-256"])
    with pytest.raises(LoginRefused, match="SCRAM channel binding negotiation error"):
        bound().first(client.first())


def test_someone_between_who_changes_the_flag() -> None:
    """The flag is under the proof."""
    client, server = ClientExchange(nonce=NONCE, channel_binding=CERTIFICATE), bound()
    client.choose(["SCRAM-SHA-256"])
    challenge = server.first(b"n" + client.first()[1:])
    with pytest.raises(ProtocolError):
        server.final(client.final(client.challenge(challenge, "pencil").run()), SECRET)


@pytest.mark.parametrize(
    ("exchange", "message", "plus", "error", "said"),
    [
        (bound(), b"n,,n=,r=x", True, ProtocolError, "malformed"),
        (bound(), b"y,,n=,r=x", True, ProtocolError, "malformed"),
        (bound(), PLUS, False, ProtocolError, "malformed"),
        (
            bound(),
            PLUS.replace(b"server-end-point", b"unique"),
            True,
            ProtocolError,
            "unsupported SCRAM channel-binding",
        ),
        (bound(), PLUS.replace(b",,n=", b",a=x,n="), True, NotSupported, "authorization identity"),
        (bound(), PLUS.replace(b",,n=", b",,m=x,n="), True, NotSupported, "mandatory SCRAM extension"),
        (bound(None), PLUS, False, NotSupported, "channel binding"),
    ],
)
def test_flags_that_do_not_fit(
    exchange: ServerExchange, message: bytes, plus: bool, error: type[GatewayError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        exchange.first(message, plus=plus)
    assert caught.value.severity == "FATAL"


@pytest.mark.parametrize("binding", [b"", b"biws", b"eSws", b"cD10bHMtc2VydmVyLWVuZC1wb2ludCws"])
def test_a_final_message_without_the_binding_that_was_announced(binding: bytes) -> None:
    server = bound()
    first = server.first(PLUS, plus=True)
    with pytest.raises(LoginRefused, match="SCRAM channel binding check failed"):
        server.final(final_for(first, binding=binding), SECRET)


# -- two secrets -----------------------------------------------------------------------------------------------------


def test_either_of_two_verifiers() -> None:
    former = Derivation("former", SALT, 4096).secret()
    for password, proved in (("pencil", SECRET), ("former", former)):
        client, server = ClientExchange(nonce=NONCE), exchange()
        keys = client.challenge(server.first(client.first()), password).run()
        client.verify(server.final(client.final(keys), SECRET, former))
        assert (server.proved, server.keys) == (proved, keys)
    with pytest.raises(AuthenticationFailed):
        exchange_final = exchange()
        exchange_final.final(final_for(exchange_final.first(FIRST)))
