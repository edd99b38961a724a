"""The client's side of SCRAM, and the servers that it must not believe. test_with_postgres.py has the real one."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import PgtrunkError, ProtocolViolation
from pgtrunk_gateway.auth import ClientExchange, Derivation, ScramKeys, ServerExchange
from pgtrunk_gateway.auth.scram import MAX_ITERATIONS
from pgtrunk_gateway.auth.scram_client import MAX_MESSAGE
from pgtrunk_gateway.errors import BackendRefused

NONCE = b"123456789012345678"
OWN = base64.b64encode(NONCE)
KEYS = ScramKeys(b"c" * 32, b"s" * 32)


def challenge(*, nonce: bytes = OWN + b"server", salt: bytes = b"YWJj", count: bytes = b"4096") -> bytes:
    return b"r=%b,s=%b,i=%b" % (nonce, salt, count)


def test_both_sides_convince_each_other() -> None:
    client, server = ClientExchange(nonce=NONCE), ServerExchange(b"salt", 7, nonce=b"n")
    derivation = client.challenge(server.first(client.first()), "secret")
    assert derivation == Derivation("secret", b"salt", 7)
    keys = derivation.run()
    client.verify(server.final(client.final(keys), keys))
    assert server.keys == keys


def test_keys_that_a_client_of_the_gateway_proved_log_in_elsewhere() -> None:
    stored = Derivation("secret", b"salt", 7).secret()
    front_client, front = ClientExchange(nonce=NONCE), ServerExchange(stored.salt, 7, nonce=b"n")
    front.final(front_client.final(front_client.challenge(front.first(front_client.first()), "secret").run()), stored)

    behind_client, behind = ClientExchange(nonce=b"x" * 18), ServerExchange(stored.salt, 7, nonce=b"m")
    behind_client.challenge(behind.first(behind_client.first()), "not known here")
    assert front.keys is not None
    behind_client.verify(behind.final(behind_client.final(front.keys), stored))


def test_extensions_that_the_server_adds_are_ignored() -> None:
    client = ClientExchange(nonce=NONCE)
    assert client.challenge(challenge() + b",x=y", "p").iterations == 4096


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"e=other-error",
        challenge() + b"\0",
        challenge() + b",",
        challenge(salt=b""),
        challenge(salt=b"==="),
        challenge(salt=b"YWJ"),
        challenge(nonce=OWN),
        challenge(nonce=b"server"),
        challenge(nonce=b"server" + OWN),
        challenge(count=b""),
        challenge(count=b"-1"),
        challenge(count=b"0"),
        challenge(count=b"4096x"),
        challenge(count=b"9999999999"),
        challenge(count=b"%d" % (MAX_ITERATIONS + 1)),
        challenge(count=b"9" * 5000),
        b"m=ext," + challenge(),
        challenge(nonce=OWN + b"x" * MAX_MESSAGE),
    ],
    ids=lambda message: message[:40].decode(),
)
def test_challenges_that_are_not_taken(message: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        ClientExchange(nonce=NONCE).challenge(message, "p")


def test_how_much_work_is_too_much_is_said_in_words() -> None:
    with pytest.raises(ProtocolViolation, match="asks for 10000001 SCRAM iterations"):
        ClientExchange(nonce=NONCE).challenge(challenge(count=b"10000001"), "p")
    assert ClientExchange(nonce=NONCE).challenge(challenge(count=b"10000000"), "p").iterations == MAX_ITERATIONS


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    client = ClientExchange(nonce=NONCE)
    client.challenge(challenge(), "p")
    client.final(KEYS)
    for answer in (b"v=" + base64.b64encode(bytes(32)), b"v=", b"v=AAAA", b"v=A", b"", b"x=y", b"v"):
        with pytest.raises(ProtocolViolation):
            client.verify(answer)


def test_no_answer_counts_before_the_proof() -> None:
    client = ClientExchange(nonce=NONCE)
    client.challenge(challenge(), "p")
    with pytest.raises(ProtocolViolation, match="could not prove"):
        client.verify(b"v=" + base64.b64encode(hmac.digest(b"", b"", "sha256")))


def test_an_error_of_the_server_is_passed_on() -> None:
    client = ClientExchange(nonce=NONCE)
    with pytest.raises(BackendRefused, match="SCRAM error invalid-proof") as caught:
        client.verify(b"e=invalid-proof")
    assert caught.value.sqlstate == "28P01"


messages = st.one_of(st.binary(max_size=300), st.text("rsive=,0123456789abc/+\0").map(str.encode))


@given(messages, st.integers(0, 60))
def test_no_server_is_too_odd(message: bytes, cut: int) -> None:
    good = challenge()
    for tried in (message, good[:cut] + message, good[:cut] + message + good[cut:]):
        client = ClientExchange(nonce=NONCE)
        try:
            client.challenge(tried, "p")
            client.final(KEYS)
        except PgtrunkError:
            pass
        with pytest.raises(PgtrunkError):
            client.verify(tried)
