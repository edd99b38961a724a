"""What a client sends: the octets of each message as documented, and what the gateway reads of them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEADER_SIZE, messages

data = st.binary(max_size=60)


@pytest.mark.parametrize(
    ("message", "octets"),
    [
        (client.query(b"select 1"), b"Q\0\0\0\x0dselect 1\0"),
        (client.parse(b"s", b"select $1", [23]), b"P\0\0\0\x16s\0select $1\0\0\x01\0\0\0\x17"),
        (client.parse(b"", b""), b"P\0\0\0\x08\0\0\0\0"),
        (client.parse(b"", b"", [0xFFFFFFFF]), b"P\0\0\0\x0c\0\0\0\x01\xff\xff\xff\xff"),
        (client.bind(b"p", b"s"), b"B\0\0\0\x12p\0s\0\0\x01\0\0\0\0\0\x01\0\0"),
        (
            client.bind(b"", b"", [b"ab", None, b""]),
            b"B\0\0\0\x1e\0\0\0\x01\0\0\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0\0\x01\0\0",
        ),
        (client.bind(b"", b"", [b"x"], binary=True), b"B\0\0\0\x15\0\0\0\x01\0\x01\0\x01\0\0\0\x01x\0\x01\0\x01"),
        (client.describe_statement(b"s"), b"D\0\0\0\x07Ss\0"),
        (client.describe_portal(b""), b"D\0\0\0\x06P\0"),
        (client.close_statement(b""), b"C\0\0\0\x06S\0"),
        (client.close_portal(b"p"), b"C\0\0\0\x07Pp\0"),
        (client.execute(), b"E\0\0\0\x09\0\0\0\0\0"),
        (client.execute(b"p", 7), b"E\0\0\0\x0ap\0\0\0\0\x07"),
        (client.copy_data(b"1\n"), b"d\0\0\0\x061\n"),
        (client.copy_fail(b"no"), b"f\0\0\0\x07no\0"),
        (client.password(b"secret"), b"p\0\0\0\x0bsecret\0"),
        (client.sasl_initial_response("SCRAM-SHA-256", b"n,,"), b"p\0\0\0\x19SCRAM-SHA-256\0\0\0\0\x03n,,"),
        (client.sasl_response(b"c=biws"), b"p\0\0\0\x0ac=biws"),
        (client.SYNC_MESSAGE, b"S\0\0\0\x04"),
        (client.FLUSH_MESSAGE, b"H\0\0\0\x04"),
        (client.TERMINATE_MESSAGE, b"X\0\0\0\x04"),
        (client.COPY_DONE_MESSAGE, b"c\0\0\0\x04"),
    ],
)
def test_octets(message: bytes, octets: bytes) -> None:
    assert message == octets
    ((kind, start, end),) = messages(message)
    assert (start, end) == (0, len(message))
    assert kind in client.KINDS


def test_the_most_parameters_that_a_bind_can_have() -> None:
    message = client.bind(b"", b"", [None] * 65535)
    assert message[11:13] == b"\xff\xff"
    assert len(message) == 5 + 6 + 2 + 4 * 65535 + 4


def test_all_types_that_a_client_may_send() -> None:
    assert bytes(sorted(client.KINDS)) == b"BCDEFHPQSXcdfp"


def test_texts_end_with_zero() -> None:
    body = b"one\0two\0three"
    assert client.text(body) == (b"one", 4)
    assert client.text(body, 4) == (b"two", 8)
    with pytest.raises(ProtocolViolation, match="its terminating zero is missing"):
        client.text(body, 8)
    with pytest.raises(ProtocolViolation):
        client.text(b"")


@given(st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=20), data)
def test_the_choice_of_a_mechanism(mechanism: str, first: bytes) -> None:
    message = client.sasl_initial_response(mechanism, first)
    assert client.parse_sasl_initial_response(message[HEADER_SIZE:]) == client.SaslInitialResponse(mechanism, first)


def test_a_choice_without_data() -> None:
    body = b"SCRAM-SHA-256\0\xff\xff\xff\xff"
    assert client.parse_sasl_initial_response(body) == client.SaslInitialResponse("SCRAM-SHA-256", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"SCRAM-SHA-256",
        b"SCRAM-SHA-256\0",
        b"SCRAM-SHA-256\0\0\0\0",
        b"SCRAM-SHA-256\0\0\0\0\x04n,,",
        b"SCRAM-SHA-256\0\0\0\0\x02n,,",
        b"SCRAM-SHA-256\0\xff\xff\xff\xffn,,",
        b"SCRAM-SHA-256\0\x80\0\0\0",
    ],
)
def test_what_is_no_choice(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        client.parse_sasl_initial_response(body)


@given(data)
def test_nothing_but_protocol_violations(body: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        client.parse_sasl_initial_response(body)
