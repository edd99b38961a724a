"""What a server sends: the octets of each message, and what gateway and client read of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import HEADER_SIZE, messages

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
words = texts.filter(bool)


def body(message: bytes) -> bytes:
    ((_, start, end),) = messages(message)
    assert (start, end) == (0, len(message))
    return message[HEADER_SIZE:]


@pytest.mark.parametrize(
    ("message", "octets"),
    [
        (server.authentication_ok(), b"R\0\0\0\x08\0\0\0\0"),
        (server.authentication_sasl(["SCRAM-SHA-256"]), b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"),
        (server.authentication_sasl_continue(b"r=x"), b"R\0\0\0\x0b\0\0\0\x0br=x"),
        (server.authentication_sasl_final(b"v=x"), b"R\0\0\0\x0b\0\0\0\x0cv=x"),
        (server.backend_key_data(7, b"abcd"), b"K\0\0\0\x0c\0\0\0\x07abcd"),
        (server.negotiate_protocol(3 << 16, ["_pq_.a"]), b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.a\0"),
        (server.negotiate_protocol(3 << 16, []), b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0"),
        (server.parameter_status("a", "b"), b"S\0\0\0\x08a\0b\0"),
        (server.ready(), b"Z\0\0\0\x05I"),
        (server.ready(b"E"), b"Z\0\0\0\x05E"),
        (server.command_complete("SELECT 1"), b"C\0\0\0\x0dSELECT 1\0"),
        (server.data_row([b"1", None]), b"D\0\0\0\x0f\0\x02\0\0\0\x011\xff\xff\xff\xff"),
        (server.data_row([]), b"D\0\0\0\x06\0\0"),
        (
            server.row_description(["a"]),
            b"T\0\0\0\x1a\0\x01a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0",
        ),
        (server.PARSE_COMPLETE_MESSAGE, b"1\0\0\0\x04"),
        (server.CLOSE_COMPLETE_MESSAGE, b"3\0\0\0\x04"),
        (server.error("42601", "no"), b"E\0\0\0\x1eSERROR\0VERROR\0C42601\0Mno\0\0"),
        (server.notice("00000", "hm"), b"N\0\0\0\x20SNOTICE\0VNOTICE\0C00000\0Mhm\0\0"),
    ],
)
def test_octets(message: bytes, octets: bytes) -> None:
    assert message == octets
    body(message)


def test_the_oids_of_columns() -> None:
    assert server.row_description(["n"], [23])[15:19] == b"\0\0\0\x17"


# -- errors ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(["ERROR", "FATAL"]), words, words, texts, texts)
def test_an_error_is_read_as_it_was_written(severity: str, sqlstate: str, message: str, detail: str, hint: str) -> None:
    written = server.error(sqlstate, message, severity=severity, detail=detail, hint=hint)
    assert server.parse_error(body(written)) == server.ErrorFields(severity, sqlstate, message, detail, hint)


def test_a_zero_in_a_text_ends_no_field_early() -> None:
    fields = server.parse_error(body(server.error("08P01", "a\0b", detail="c\0d")))
    assert (fields.message, fields.detail) == ("ab", "cd")


def test_fields_of_other_types_are_left_out_and_the_severity_is_not_the_translated_one() -> None:
    said = b"SFATAL\xc3\x89\0VFATAL\0C57P01\0Mthe end\0Fpostgres.c\0L1\0RProcessInterrupts\0\0"
    assert server.parse_error(said) == server.ErrorFields("FATAL", "57P01", "the end")
    assert server.parse_error(b"SFATAL\0\0").severity == "FATAL"
    assert server.parse_error(b"") == server.ErrorFields()
    assert server.parse_error(b"M\xff\0\0").message == "\ufffd"


# -- settings and keys -----------------------------------------------------------------------------------------------


@given(texts, texts)
def test_a_setting_is_read_as_it_was_written(name: str, value: str) -> None:
    assert server.parse_parameter_status(body(server.parameter_status(name, value))) == (name, value)


@given(st.binary(max_size=20).filter(lambda value: b"\0" not in value))
def test_a_setting_in_another_encoding_passes_unchanged(value: bytes) -> None:
    said = b"search_path\0" + value + b"\0"
    assert body(server.parameter_status(*server.parse_parameter_status(said))) == said


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(min_size=1, max_size=256))
def test_a_key_is_read_as_it_was_written(pid: int, secret: bytes) -> None:
    key = server.parse_backend_key_data(body(server.backend_key_data(pid, secret)))
    assert (key.pid, key.secret) == (pid, secret)
    assert "secret" not in repr(key)


def test_mechanisms() -> None:
    offered = body(server.authentication_sasl(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]))
    request = server.parse_authentication(offered)
    assert request.code == 10
    assert server.parse_sasl_mechanisms(request.data) == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]
    assert server.parse_sasl_mechanisms(b"\0") == []


# -- what they are not -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "said"),
    [
        (server.parse_authentication, b"\0\0\0"),
        (server.parse_backend_key_data, b"\0\0\0\1"),
        (server.parse_backend_key_data, bytes(261)),
        (server.parse_parameter_status, b"name\0value"),
        (server.parse_parameter_status, b"name"),
        (server.parse_error, b"Mno zero"),
    ],
)
def test_what_is_none(parse: Callable[[bytes], object], said: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse(said)


@given(
    st.sampled_from(
        [
            server.parse_authentication,
            server.parse_backend_key_data,
            server.parse_parameter_status,
            server.parse_error,
            server.parse_sasl_mechanisms,
        ]
    ),
    st.binary(max_size=60),
)
def test_nothing_but_protocol_violations(parse: Callable[[bytes], object], said: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        parse(said)
