"""SASLprep: the cases by hand here; test_with_postgres.py asks PostgreSQL itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.auth.saslprep import saslprep


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        ("", ""),
        ("secret", "secret"),
        ("control\x01", "control\x01"),  # ASCII is never looked at
        ("I\u00adX", "IX"),  # RFC 4013, section 3
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("a\u200bb", "a b"),
        ("caf\u0065\u0301", "caf\u00e9"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_mapped_and_normalized(password: str, prepared: str) -> None:
    assert saslprep(password) == prepared.encode()


@pytest.mark.parametrize(
    "password",
    [
        "\u00ad",  # nothing would remain
        "\u00e9\x07",  # a control character beside one that is not ASCII
        "\u0627\u0031",  # RFC 4013, section 3: right to left, and does not end so
        "\u0627a\u0627",
        "a\u0627",
        "\ue000\u00aa",  # private use
        "\u0221\u00aa",  # unassigned in Unicode 3.2
        "\U0001f600\u00aa",
    ],
)
def test_prohibited_is_used_raw(password: str) -> None:
    assert saslprep(password) == password.encode()


def test_no_utf_8_is_used_raw() -> None:
    assert saslprep(b"\xff\xc2\xaa".decode("utf-8", "surrogateescape")) == b"\xff\xc2\xaa"


@given(st.binary())
def test_no_password_is_too_odd(password: bytes) -> None:
    assert isinstance(saslprep(password.decode("utf-8", "surrogateescape")), bytes)
