"""Secrets are told apart as PostgreSQL tells them apart, and show themselves to nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.auth import MD5, Plain, ScramSecret, parse_secret
from pgtrunk_gateway.errors import ConfigError

KEYS = "RukL0Xo3Ql/2F9FsD7mcQ3GATG2fD3PA71qY1JagGDs=:BhKUwyyivFm7Tq2jDJVXSVRbRDgTWyBilZKgg6DDuYU="
SCRAM = f"SCRAM-SHA-256$4096:D76gvGUVj9Z4DNiGoabOBg==${KEYS}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "md5",
        "md5" + "0" * 31,
        "md5" + "0" * 33,
        "md5" + "A" * 32,
        "MD5" + "0" * 32,
        "SCRAM-SHA-256",
        "SCRAM-SHA-1$4096:x$y:z",
    ],
)
def test_anything_else_is_a_password_in_clear(text: str) -> None:
    assert parse_secret(text) == Plain(text)


def test_md5() -> None:
    text = "md545f2603610af569b6155c45067268c6b"
    assert parse_secret(text) == MD5(text)


def test_scram_and_back() -> None:
    secret = parse_secret(SCRAM)
    assert isinstance(secret, ScramSecret)
    assert (secret.iterations, len(secret.salt), len(secret.stored_key), len(secret.server_key)) == (4096, 16, 32, 32)
    assert secret.encode() == SCRAM


def test_any_iteration_count_and_salt_length_that_postgres_may_have() -> None:
    for iterations, salt in ((1, "YQ=="), (2**31 - 1, "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXo=")):
        secret = parse_secret(f"SCRAM-SHA-256${iterations}:{salt}${KEYS}")
        assert isinstance(secret, ScramSecret) and secret.iterations == iterations


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SCRAM-SHA-256$", "it must be"),
        ("SCRAM-SHA-256$4096:D76gvGUVj9Z4DNiGoabOBg==", "it must be"),
        ("SCRAM-SHA-256$4096:D76gvGUVj9Z4DNiGoabOBg==$AAAA", "it must be"),
        (f"SCRAM-SHA-256$-1:D76gvGUVj9Z4DNiGoabOBg==${KEYS}", "it must be"),
        (f"SCRAM-SHA-256$4096:${KEYS}", "it must be"),
        (f"{SCRAM} ", "it must be"),
        (f"{SCRAM}\n", "it must be"),
        (f"SCRAM-SHA-256$0:D76gvGUVj9Z4DNiGoabOBg==${KEYS}", "0 iterations"),
        (f"SCRAM-SHA-256$2147483648:D76gvGUVj9Z4DNiGoabOBg==${KEYS}", "2147483648 iterations"),
        (f"SCRAM-SHA-256$4096:D76g=vGU${KEYS}", "base64"),
        (f"SCRAM-SHA-256$4096:====${KEYS}", "base64"),
        ("SCRAM-SHA-256$4096:D76gvGUVj9Z4DNiGoabOBg==$AAAA:AAAA", "32 octets"),
    ],
)
def test_a_malformed_scram_secret_is_not_taken_for_a_password(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_secret(text)


@pytest.mark.parametrize(
    "secret", [Plain("hunter2"), MD5("md5hunter2"), parse_secret(SCRAM)], ids=lambda s: type(s).__name__
)
def test_a_secret_does_not_show_itself(secret: Plain | MD5 | ScramSecret) -> None:
    assert "hunter2" not in repr(secret) and "\\x" not in repr(secret)


@given(st.one_of(st.text(), st.text("SCRAM-HA256$:=/+0123456789abcd").map("SCRAM-SHA-256$".__add__)))
def test_no_text_is_too_odd(text: str) -> None:
    try:
        secret = parse_secret(text)
    except ConfigError:
        assert text.startswith("SCRAM-SHA-256$")
    else:
        assert isinstance(secret, Plain | MD5 | ScramSecret)
