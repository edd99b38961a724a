"""What a server sends: the octets of each message, and what gateway and client read of them."""

from __future__ import annotations

import struct
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
        (server.authentication_cleartext_password(), b"R\0\0\0\x08\0\0\0\x03"),
        (server.authentication_md5_password(b"salt"), b"R\0\0\0\x0c\0\0\0\x05salt"),
        (server.authentication_sasl(["SCRAM-SHA-256"]), b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"),
        (server.authentication_sasl_continue(b"r=x"), b"R\0\0\0\x0b\0\0\0\x0br=x"),
        (server.authentication_sasl_final(b"v=x"), b"R\0\0\0\x0b\0\0\0\x0cv=x"),
        (server.backend_key_data(-1, bytes(256)), b"K\0\0\x01\x08\xff\xff\xff\xff" + bytes(256)),
        (server.backend_key_data(7, b"abcd"), b"K\0\0\0\x0c\0\0\0\x07abcd"),
        (server.negotiate_protocol(3 << 16, ["_pq_.a"]), b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.a\0"),
        (server.negotiate_protocol(3 << 16, []), b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0"),
        (server.parameter_status("a", "b"), b"S\0\0\0\x08a\0b\0"),
        (server.ready(), b"Z\0\0\0\x05I"),
        (server.ready(b"T"), b"Z\0\0\0\x05T"),
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


def test_all_parts_of_an_error() -> None:
    octets = b"E\0\0\0\x24SFATAL\0VFATAL\0C28P01\0Mno\0Dd\0Hh\0\0"
    assert server.error("28P01", "no", severity="FATAL", detail="d", hint="h") == octets
    assert server.notice("28P01", "no", severity="FATAL", detail="d", hint="h") == b"N" + octets[1:]


def test_the_oids_of_columns() -> None:
    assert server.row_description(["n"], [23])[15:19] == b"\0\0\0\x17"
    column = b"\0\0\0\0\0\0\0\0\0\0%c\xff\xff\xff\xff\xff\xff\0\0"
    assert server.row_description(["n", "m"], [23, 20]) == b"T\0\0\0\x2e\0\x02n" + column % 23 + b"m" + column % 20


def test_the_type_octets() -> None:
    login = [server.AUTHENTICATION, server.BACKEND_KEY_DATA, server.NEGOTIATE_PROTOCOL, server.PARAMETER_STATUS]
    assert bytes([*login, server.READY, server.ERROR, server.NOTICE, server.NOTIFICATION]) == b"RKvSZENA"
    answers = [server.PARSE_COMPLETE, server.BIND_COMPLETE, server.CLOSE_COMPLETE, server.PARAMETER_DESCRIPTION]
    assert bytes([*answers, server.ROW_DESCRIPTION, server.NO_DATA, server.DATA_ROW]) == b"123tTnD"
    ends = [server.COMMAND_COMPLETE, server.EMPTY_QUERY, server.PORTAL_SUSPENDED, server.FUNCTION_RESULT]
    assert bytes([*ends, server.COPY_IN, server.COPY_OUT, server.COPY_BOTH]) == b"CIsVGHW"


# -- errors ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(["ERROR", "FATAL"]), words, words, texts, texts)
def test_an_error_is_read_as_it_was_written(severity: str, sqlstate: str, message: str, detail: str, hint: str) -> None:
    written = server.error(sqlstate, message, severity=severity, detail=detail, hint=hint)
    assert server.parse_error(body(written)) == server.ErrorFields(severity, sqlstate, message, detail, hint)


def test_a_zero_in_a_text_ends_no_field_early() -> None:
    fields = server.parse_error(body(server.error("08P01", "a\0b", detail="c\0d")))
    assert (fields.message, fields.detail) == ("ab", "cd")
    # A text of nothing but zeros is a field all the same, an empty one.
    assert body(server.error("22\x00021", "a", hint="\0")) == b"SERROR\0VERROR\0C22021\0Ma\0H\0\0"


def test_fields_of_other_types_are_left_out_and_the_severity_is_not_the_translated_one() -> None:
    said = b"SFATAL\xc3\x89\0VFATAL\0C57P01\0Mthe end\0Fpostgres.c\0L1\0RProcessInterrupts\0\0"
    assert server.parse_error(said) == server.ErrorFields("FATAL", "57P01", "the end")
    assert server.parse_error(b"SFATAL\0\0").severity == "FATAL"
    assert server.parse_error(b"") == server.ErrorFields()
    assert server.parse_error(b"M\xff\0\0").message == "\ufffd"


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (b"\0", server.ErrorFields()),
        (b"VERROR\0SFEHLER\0\0", server.ErrorFields("ERROR")),
        (b"Mx\0\xffodd\0\x01\0tT\0P7\0\0", server.ErrorFields(message="x")),
        (b"Mold\0Mnew\0\0", server.ErrorFields(message="new")),
        (b"Mx\0\0Dbehind the end\0\0", server.ErrorFields(message="x")),
        (b"Mx\0", server.ErrorFields(message="x")),
        ("Mgröße\0Dé\0\0".encode(), server.ErrorFields(message="größe", detail="é")),
        (b"Mgr\xf6\xdfe\0Hcaf\xe9\0\0", server.ErrorFields(message="gr\ufffd\ufffde", hint="caf\ufffd")),
    ],
)
def test_odd_errors(said: bytes, fields: server.ErrorFields) -> None:
    assert server.parse_error(said) == fields


# -- settings and keys -----------------------------------------------------------------------------------------------


@given(texts, texts)
def test_a_setting_is_read_as_it_was_written(name: str, value: str) -> None:
    assert server.parse_parameter_status(body(server.parameter_status(name, value))) == (name, value)


@given(st.binary(max_size=20).filter(lambda value: b"\0" not in value))
def test_a_setting_in_another_encoding_passes_unchanged(value: bytes) -> None:
    said = b"search_path\0" + value + b"\0"
    assert body(server.parameter_status(*server.parse_parameter_status(said))) == said


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(min_size=4, max_size=256))
def test_a_key_is_read_as_it_was_written(pid: int, secret: bytes) -> None:
    key = server.parse_backend_key_data(body(server.backend_key_data(pid, secret)))
    assert (key.pid, key.secret) == (pid, secret)
    assert repr(key) == f"BackendKeyData(pid={pid})"


@given(st.integers(0, 0xFFFF), st.lists(texts.map(lambda name: f"_pq_.{name}"), max_size=4))
def test_a_negotiation_is_read_as_it_was_written(minor: int, options: list[str]) -> None:
    newest = 3 << 16 | minor
    assert server.parse_negotiate_protocol(body(server.negotiate_protocol(newest, options))) == (newest, options)


@pytest.mark.parametrize(
    ("newest", "read"), [(0, 3 << 16), (2, 3 << 16 | 2), (2 << 16, 2 << 16), (4 << 16 | 1, 4 << 16 | 1), (-1, -1)]
)
def test_a_negotiation_that_has_the_minor_version_alone(newest: int, read: int) -> None:
    assert server.parse_negotiate_protocol(struct.pack("!ii", newest, 0)) == (read, [])


def test_a_name_in_another_encoding_is_one_that_nobody_knows() -> None:
    assert server.parse_parameter_status(b"caf\xe9\0x\0") == ("caf\ufffd", "x")


@pytest.mark.parametrize(
    ("said", "code", "data"),
    [(b"\0\0\0\0", 0, b""), (b"\0\0\0\x05salt", 5, b"salt"), (b"\xff\xff\xff\xff\0", -1, b"\0")],
)
def test_requests_for_authentication(said: bytes, code: int, data: bytes) -> None:
    assert server.parse_authentication(said) == server.Authentication(code, data)


def test_mechanisms() -> None:
    offered = body(server.authentication_sasl(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]))
    request = server.parse_authentication(offered)
    assert request.code == 10
    assert server.parse_sasl_mechanisms(request.data) == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]
    assert server.parse_sasl_mechanisms(b"\0") == []
    assert server.parse_sasl_mechanisms(b"X\xff\0Y") == ["X\ufffd", "Y"]


# -- what they are not -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "said"),
    [
        (server.parse_authentication, b""),
        (server.parse_authentication, b"\0\0\0"),
        (server.parse_backend_key_data, b""),
        (server.parse_backend_key_data, b"\0\0\0\1"),
        (server.parse_backend_key_data, bytes(7)),
        (server.parse_backend_key_data, bytes(261)),
        (server.parse_negotiate_protocol, b"\0\3\0\2\0\0\0"),
        (server.parse_negotiate_protocol, b"\0\3\0\2\xff\xff\xff\xff"),
        (server.parse_negotiate_protocol, b"\0\3\0\2\0\0\0\2_pq_.a\0"),
        (server.parse_negotiate_protocol, b"\0\3\0\2\0\0\0\1_pq_.a"),
        (server.parse_parameter_status, b"name\0value"),
        (server.parse_parameter_status, b"name"),
        (server.parse_parameter_status, b"name\0"),
        (server.parse_parameter_status, b""),
        (server.parse_error, b"S"),
        (server.parse_error, b"Mno zero"),
    ],
)
def test_what_is_none(parse: Callable[[bytes], object], said: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse(said)


parsers: list[Callable[[bytes], object]] = [
    server.parse_authentication,
    server.parse_backend_key_data,
    server.parse_negotiate_protocol,
    server.parse_parameter_status,
    server.parse_error,
    server.parse_sasl_mechanisms,
]
pieces = st.sampled_from([b"\0", b"S", b"M", b"C42P01\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"x\0"])
garbage = st.binary(max_size=300) | st.lists(pieces, max_size=30).map(b"".join)


@pytest.mark.parametrize("parse", parsers, ids=lambda parse: parse.__name__)
@given(said=garbage)
def test_nothing_but_protocol_violations(parse: Callable[[bytes], object], said: bytes) -> None:
    try:
        found = parse(said)
    except ProtocolViolation:
        return
    # No octet makes more than one character of what is kept, and no character more than ten of a repr.
    assert len(repr(found)) <= 200 + 10 * len(said)


@given(garbage)
def test_an_error_that_was_read_can_be_passed_on(said: bytes) -> None:
    try:
        fields = server.parse_error(said)
    except ProtocolViolation:
        return
    passed = server.error(
        fields.sqlstate or "XX000",
        fields.message,
        severity=fields.severity or "ERROR",
        detail=fields.detail,
        hint=fields.hint,
    )
    again = server.parse_error(body(passed))
    assert (again.message, again.detail, again.hint) == (fields.message, fields.detail, fields.hint)
