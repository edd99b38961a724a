"""Derivations, their cache, and what unknown users are shown."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.auth import SALT_LENGTH, Derivation, DerivationCache, parse_secret
from pgtrunk_gateway.auth.scram import mock_salt, mock_verifier, xor

KEY = b"k" * 32


def test_a_secret_that_postgres_has_made() -> None:
    # scramuser1 of PgBouncer's own tests, whose password is foo.
    stored = parse_secret(
        "SCRAM-SHA-256$4096:D76gvGUVj9Z4DNiGoabOBg==$"
        "RukL0Xo3Ql/2F9FsD7mcQ3GATG2fD3PA71qY1JagGDs=:BhKUwyyivFm7Tq2jDJVXSVRbRDgTWyBilZKgg6DDuYU="
    )
    salt = bytes.fromhex("0fbea0bc65158fd6780cd886a1a6ce06")
    assert Derivation("foo", salt, 4096).secret() == stored
    assert Derivation("fop", salt, 4096).secret() != stored


def test_the_key_of_a_derivation_tells_all_that_differs() -> None:
    derivations = [
        Derivation("a", b"salt", 1),
        Derivation("b", b"salt", 1),
        Derivation("a", b"sal", 1),
        Derivation("ta", b"sal", 1),
        Derivation("a", b"salt", 11),
    ]
    assert len({derivation.key for derivation in derivations}) == len(derivations)
    assert Derivation("a", b"salt", 1).key == derivations[0].key
    assert "hunter2" not in repr(Derivation("hunter2", b"salt", 1))


def test_the_cache_starts_each_job_once() -> None:
    started: list[Derivation] = []
    cache: DerivationCache[int] = DerivationCache()

    def start(derivation: Derivation) -> int:
        started.append(derivation)
        return len(started)

    first, second = Derivation("a", b"s", 1), Derivation("b", b"s", 1)
    assert [cache.get(d, start) for d in (first, first, second, first)] == [1, 1, 2, 1]
    cache.forget(first)
    cache.forget(first)
    assert cache.get(first, start) == 3


def test_the_cache_is_bounded_and_drops_what_was_not_used() -> None:
    cache: DerivationCache[str] = DerivationCache(capacity=2)
    a, b, c = (Derivation(name, b"s", 1) for name in "abc")
    for derivation in (a, b, a, c):
        cache.get(derivation, lambda derivation: derivation.password)
    assert len(cache) == 2
    assert cache.get(a, lambda _: "anew") == "a"
    assert cache.get(b, lambda _: "anew") == "anew"


def test_mock_salts_are_stable_and_differ_by_user_and_key() -> None:
    assert mock_salt("ann", KEY) == mock_salt("ann", KEY)
    assert len(mock_salt("ann", KEY)) == SALT_LENGTH
    assert (
        len({mock_salt("ann", KEY), mock_salt("bob", KEY), mock_salt("ann", b"other"), mock_salt("\udcff", KEY)}) == 4
    )


def test_a_mock_verifier_is_unlike_its_salt() -> None:
    verifier = mock_verifier("ann", KEY)
    assert len(verifier.stored_key) == len(verifier.server_key) == 32
    assert not verifier.server_key.startswith(mock_salt("ann", KEY))
    assert "\\x" not in repr(verifier)


@pytest.mark.parametrize("left", [bytes(32), bytes(range(32)), b"\xff" * 32])
def test_xor_keeps_all_octets(left: bytes) -> None:
    assert xor(left, left) == bytes(32)
    assert xor(left, bytes(32)) == left
