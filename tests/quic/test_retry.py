from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.quic.retry import LIFETIME, MAX_SKEW, RetryTokens
from pgtrunk_gateway.quic.sealing import Sealer

HERE = ("192.0.2.1", 5000)
ORIGINAL, RETRY = b"original", b"retry-id"
TOKENS = RetryTokens(Sealer([b"k" * 32], "retry"))


def give(address: tuple[object, ...] = HERE, now: float = 1000.0) -> bytes:
    return TOKENS.give(address, original_id=ORIGINAL, retry_id=RETRY, now=now, nonce=bytes(12))


def test_a_token_gives_back_the_original_id() -> None:
    assert TOKENS.take(give(), HERE, destination_id=RETRY, now=1001.0) == ORIGINAL


@pytest.mark.parametrize(
    "address",
    [("192.0.2.2", 5000), ("192.0.2.1", 5001), ("::1", 5000, 0, 0)],
    ids=["other host", "other port", "other family"],
)
def test_a_token_is_good_for_its_address_only(address: tuple[object, ...]) -> None:
    assert TOKENS.take(give(), address, destination_id=RETRY, now=1001.0) is None


def test_a_token_is_good_for_its_connection_id_only() -> None:
    assert TOKENS.take(give(), HERE, destination_id=b"another!", now=1001.0) is None
    assert TOKENS.take(give(), HERE, destination_id=b"", now=1001.0) is None


@pytest.mark.parametrize(
    ("age", "good"),
    [(0, True), (LIFETIME - 1, True), (LIFETIME + 1, False), (1 - MAX_SKEW, True), (-1 - MAX_SKEW, False)],
)
def test_a_token_is_short_lived(age: float, good: bool) -> None:
    assert (TOKENS.take(give(), HERE, destination_id=RETRY, now=1000 + age) is not None) is good


def test_a_worker_with_the_previous_key_is_understood() -> None:
    rotated = RetryTokens(Sealer([b"n" * 32, b"k" * 32], "retry"))
    assert rotated.take(give(), HERE, destination_id=RETRY, now=1001.0) == ORIGINAL
    stranger = RetryTokens(Sealer([b"n" * 32], "retry"))
    assert stranger.take(give(), HERE, destination_id=RETRY, now=1001.0) is None


def test_a_mapped_address_is_the_address() -> None:
    mapped = ("::ffff:192.0.2.1", 5000, 0, 0)
    assert TOKENS.take(give(mapped), HERE, destination_id=RETRY, now=1001.0) == ORIGINAL


def test_a_link_local_address_may_carry_its_interface() -> None:
    address = ("fe80::1%eth0", 5000, 0, 2)
    assert TOKENS.take(give(address), address, destination_id=RETRY, now=1001.0) == ORIGINAL


@given(token=st.binary(max_size=200))
def test_noise_is_no_token(token: bytes) -> None:
    assert TOKENS.take(token, HERE, destination_id=RETRY, now=1001.0) is None
