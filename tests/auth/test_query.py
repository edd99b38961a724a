"""auth_query, message by message: what is asked, what an answer means, and what is no answer."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend
from pgtrunk.wire.framing import encode, messages
from pgtrunk_gateway.auth import MD5, Answer, Derivation, Found, Plain, Secret, request
from pgtrunk_gateway.errors import LookupFailed

HEAD = encode(b"1") + encode(b"2")
COLUMNS = backend.row_description(["rolname", "rolpassword"])
END = backend.command_complete("SELECT 1") + backend.ready()
SCRAM = Derivation("secret", b"salt", 1).secret()


def row(*values: bytes | None) -> bytes:
    return backend.data_row(list(values))


def answer(data: bytes) -> Found | None:
    """What a whole answer says."""
    reader = Answer()
    for kind, start, end in messages(data):
        assert not reader.done
        reader.feed(kind, data[start + 5 : end])
    assert reader.done
    return reader.result()


def test_the_name_is_a_parameter_and_never_part_of_the_query() -> None:
    name = "'; DROP ROLE app; --"
    asked = request("SELECT a, b FROM t WHERE a = $1", name)
    assert [chr(kind) for kind, _, _ in messages(asked)] == ["P", "B", "D", "E", "S"]
    parse, bind = (asked[start + 5 : end] for _, start, end in list(messages(asked))[:2])
    assert parse == b"\0SELECT a, b FROM t WHERE a = $1\0\0\0"
    assert bind == b"\0\0\0\1\0\0\0\1" + struct.pack("!i", len(name)) + name.encode() + b"\0\1\0\0"


@pytest.mark.parametrize(
    ("stored", "secrets"),
    [
        (b"secret", (Plain("secret"),)),
        (b"caf\xe9", (Plain("caf\udce9"),)),
        (b"md5" + b"0" * 32, (MD5("md5" + "0" * 32),)),
        (SCRAM.encode().encode(), (SCRAM,)),
        (b"", (Plain(""),)),
        (None, ()),
        # It cannot be read: it lets nobody in, and is no word that could be guessed.
        (b"SCRAM-SHA-256$1:broken", ()),
    ],
)
def test_a_user(stored: bytes | None, secrets: tuple[Secret, ...]) -> None:
    assert answer(HEAD + COLUMNS + row(b"app", stored) + END) == Found("app", secrets)
    assert "secret" not in repr(Found("app", (Plain("secret"),)))


def test_no_user_and_the_last_of_several() -> None:
    assert answer(HEAD + COLUMNS + END) is None
    assert answer(HEAD + COLUMNS + row(b"a", b"x") + row(b"b", b"y") + END) == Found("b", (Plain("y"),))


def test_what_may_come_at_any_time() -> None:
    notes = backend.notice("00000", "hello") + backend.parameter_status("TimeZone", "UTC")
    data = notes + HEAD + notes + COLUMNS + notes + row(b"app", b"x") + notes + END
    assert answer(data) == Found("app", (Plain("x"),))


@pytest.mark.parametrize(
    ("data", "log"),
    [
        (HEAD + backend.row_description(["one"]) + row(b"app") + END, "expected 2 columns from auth_query, not 1"),
        (HEAD + backend.row_description(["a", "b", "c"]) + END, "expected 2 columns from auth_query, not 3"),
        (HEAD + COLUMNS + row(b"app") + END, "expected 2 columns from auth_query, not 1"),
        (HEAD + encode(b"n") + END, "expected 2 columns from auth_query, not 0"),
        (HEAD + encode(b"n") + encode(b"I") + backend.ready(), "expected 2 columns from auth_query, not 0"),
        (HEAD + COLUMNS + row(None, b"x") + END, "auth_query response contained null user name"),
        (
            backend.error("42P01", 'relation "x" does not exist') + backend.ready(),
            'error response from auth_query: ERROR relation "x" does not exist (42P01)',
        ),
        (
            HEAD + COLUMNS + row(b"app", b"x") + backend.error("XX000", "late") + backend.ready(),
            "error response from auth_query: ERROR late (XX000)",
        ),
    ],
)
def test_what_is_wrong_is_told_to_the_log_alone(data: bytes, log: str) -> None:
    with pytest.raises(LookupFailed) as caught:
        answer(data)
    assert (caught.value.message, caught.value.log) == ("bouncer config error", log)


def test_a_name_that_this_database_cannot_have() -> None:
    """It would be an error only for such names, and tell them from others that nobody has."""
    assert answer(backend.error("22021", "invalid byte sequence") + backend.ready()) is None


@pytest.mark.parametrize(
    "data",
    [
        encode(b"G", b"\0\0\0"),
        encode(b"R", b"\0\0\0\0"),
        encode(b"T", b"\0"),
        encode(b"D", b"\0"),
        encode(b"D", b"\0\2\0\0\0\1a"),
        encode(b"D", b"\0\2\0\0\0\1a\0\0\0\2b"),
        encode(b"D", b"\0\2\x7f\xff\xff\xffa"),
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    reader = Answer()
    with pytest.raises(ProtocolViolation):
        reader.feed(data[0], data[5:])


@given(st.lists(st.tuples(st.sampled_from(b"TDCZE12NnSIAR"), st.binary(max_size=40)), max_size=8))
def test_no_answer_is_too_odd(said: list[tuple[int, bytes]]) -> None:
    reader = Answer()
    with contextlib.suppress(ProtocolViolation, LookupFailed):
        for kind, body in said:
            reader.feed(kind, body)
        reader.result()
