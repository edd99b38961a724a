"""What a client sends: the octets of each message as documented, and what the gateway reads of them."""

from __future__ import annotations

import struct

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
    assert bytes([client.BIND, client.CLOSE, client.COPY_DATA, client.COPY_DONE, client.COPY_FAIL]) == b"BCdcf"
    assert bytes([client.DESCRIBE, client.EXECUTE, client.FLUSH, client.FUNCTION_CALL, client.PARSE]) == b"DEHFP"
    assert bytes([client.PASSWORD, client.QUERY, client.SYNC, client.TERMINATE]) == b"pQSX"


def test_texts_end_with_zero() -> None:
    body = b"one\0two\0three"
    assert client.text(body) == (b"one", 4)
    assert client.text(body, 4) == (b"two", 8)
    with pytest.raises(ProtocolViolation, match="its terminating zero is missing"):
        client.text(body, 8)
    with pytest.raises(ProtocolViolation):
        client.text(b"")


@given(st.binary(max_size=30), st.integers(0, 40))
def test_a_text_ends_at_the_first_zero(body: bytes, start: int) -> None:
    try:
        value, end = client.text(body, start)
    except ProtocolViolation:
        assert 0 not in body[start:]
        return
    assert body[start:end] == value + b"\0"
    assert 0 not in value


@given(st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=20), data)
def test_the_choice_of_a_mechanism(mechanism: str, first: bytes) -> None:
    message = client.sasl_initial_response(mechanism, first)
    assert client.parse_sasl_initial_response(message[HEADER_SIZE:]) == client.SaslInitialResponse(mechanism, first)


def test_a_choice_without_data() -> None:
    body = b"SCRAM-SHA-256\0\xff\xff\xff\xff"
    assert client.parse_sasl_initial_response(body) == client.SaslInitialResponse("SCRAM-SHA-256", None)
    assert client.parse_sasl_initial_response(b"X\0\0\0\0\0") == client.SaslInitialResponse("X", b"")


def test_a_mechanism_that_is_not_ascii_is_one_that_nobody_knows() -> None:
    body = b"SCRAM\xff\0\0\0\0\0"
    assert client.parse_sasl_initial_response(body) == client.SaslInitialResponse("SCRAM\ufffd", b"")


def test_a_choice_in_part_is_none() -> None:
    body = client.sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=x")[HEADER_SIZE:]
    for end in range(len(body)):
        with pytest.raises(ProtocolViolation):
            client.parse_sasl_initial_response(body[:end])


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
        b"SCRAM-SHA-256\0\xff\xff\xff\xfe",
        b"SCRAM-SHA-256\0\x80\0\0\0",
        b"SCRAM-SHA-256\0\x7f\xff\xff\xffn,,",
    ],
)
def test_what_is_no_choice(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        client.parse_sasl_initial_response(body)


announced = st.builds(
    lambda name, length, first: name + b"\0" + struct.pack("!i", length) + first,
    st.binary(max_size=10),
    st.integers(-3, 10) | st.integers(-(1 << 31), (1 << 31) - 1),
    st.binary(max_size=10),
)


@given(data | announced)
def test_nothing_but_protocol_violations(body: bytes) -> None:
    try:
        response = client.parse_sasl_initial_response(body)
    except ProtocolViolation:
        return
    assert len(response.mechanism) + 5 + len(response.data or b"") == len(body)


@given(data.map(lambda octets: octets.replace(b"\0", b"")))
def test_a_password_is_read_back(secret: bytes) -> None:
    assert client.parse_password(client.password(secret)[HEADER_SIZE:]) == secret


@pytest.mark.parametrize("body", [b"", b"secret", b"secret\0x", b"\0\0"])
def test_what_is_no_password(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        client.parse_password(body)
