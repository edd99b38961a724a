"""What a session may not be told: where to connect, and how."""

from __future__ import annotations

import ssl

import pytest

from pgtrunk.dsn import check_session_arguments
from pgtrunk.errors import UsageError


def check(dsn: str | None = None, *, verified: bool = True, **arguments: object) -> None:
    check_session_arguments(dsn, arguments, gateway="gw:6432", verified=verified)


@pytest.mark.parametrize(
    "dsn",
    [
        None,
        "postgresql:///shop",
        "postgresql://",
        "postgres://app:secret@/shop",
        "postgresql://app@/shop?application_name=x&search_path=y",
        "postgresql://app:p%40ss%2Fword@/shop",
        "postgresql:///shop?user=app&password=p%26q&host=&port=",
        "postgresql:///?service=shop",
        *(f"postgresql:///shop?sslmode={mode}" for mode in ("disable", "allow", "prefer", "require", "verify-full")),
    ],
)
def test_these_are_fine(dsn: str | None) -> None:
    check(dsn)


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql://db.example.net/shop", "name no host"),
        ("postgresql://app:secret@db.example.net:5432/shop", "name no host"),
        ("postgresql://app:se@cret@/shop", "name no host.*written %40"),
        ("postgresql://app:secret@[::1]/shop", "name no host"),
        ("postgresql://app:secret@:5432/shop", "name no host"),
        ("postgresql:///shop?host=/tmp", "name no host"),
        ("postgresql:///shop?hostaddr=10.0.0.1", "name no hostaddr"),
        ("postgresql:///shop?port=5432", "name no port"),
        ("postgresql:///shop?passfile=/tmp/x", "passfile is not read"),
        ("postgresql:///shop?sslrootcert=system", "sslrootcert has no effect.*ca_file="),
        ("postgresql:///shop?sslcert=a&sslkey=b", "sslcert has no effect"),
        ("postgresql:///shop?sslnegotiation=direct", "sslnegotiation has no effect"),
        ("postgresql:///shop?sslmode=Require", "has no effect on a stream"),
        ("postgresql://[app/shop", "cannot be read"),
    ],
)
def test_these_are_refused_without_quoting_the_password(dsn: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check(dsn)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"host": "db"}, "name no host"),
        ({"host": ["a", "b"]}, "name no host"),
        ({"port": 5432}, "name no port"),
        ({"passfile": "x"}, "passfile is not read"),
        ({"direct_tls": True}, "direct_tls has no effect"),
        ({"ssl": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}, "has no effect on a stream"),
        ({"ssl": "nonsense"}, "has no effect on a stream"),
    ],
)
def test_arguments_are_refused_too(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_session_arguments(None, arguments, gateway="gw:6432", verified=True)


@pytest.mark.parametrize("value", [None, False, "disable", "prefer", "require"])
def test_a_mode_that_promises_no_more_than_encryption_is_ignored(value: object) -> None:
    check(ssl=value, verified=False)


@pytest.mark.parametrize("value", [True, "verify-full", "verify_ca"])
def test_verification_is_promised_only_by_a_trunk_that_verifies(value: object) -> None:
    check(ssl=value)
    with pytest.raises(UsageError, match="told not to verify"):
        check(ssl=value, verified=False)
    with pytest.raises(UsageError, match="told not to verify"):
        check("postgresql:///shop?sslmode=verify-ca", verified=False)
