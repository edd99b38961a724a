from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.errors import UsageError
from pgtrunk_gateway.quic.sealing import Sealer

OLD, NEW = b"o" * 32, b"n" * 32
NONCE = bytes(12)


@given(value=st.binary(max_size=300), context=st.binary(max_size=40))
def test_what_is_sealed_opens_in_its_context_only(value: bytes, context: bytes) -> None:
    sealer = Sealer([NEW], "tickets")
    sealed = sealer.seal(value, nonce=NONCE, context=context)
    assert sealer.open(sealed, context=context) == value
    assert sealer.open(sealed, context=context + b"x") is None


def test_rotation_opens_the_old_and_seals_with_the_new() -> None:
    before, during, after = Sealer([OLD], "t"), Sealer([NEW, OLD], "t"), Sealer([NEW], "t")
    assert during.open(before.seal(b"v", nonce=NONCE)) == b"v"
    assert after.open(during.seal(b"v", nonce=NONCE)) == b"v"
    assert after.open(before.seal(b"v", nonce=NONCE)) is None


def test_one_purpose_does_not_open_another() -> None:
    assert Sealer([NEW], "tickets").open(Sealer([NEW], "retry").seal(b"v", nonce=NONCE)) is None


@given(sealed=st.binary(max_size=100))
def test_noise_does_not_open(sealed: bytes) -> None:
    assert Sealer([NEW, OLD], "t").open(sealed) is None


@given(at=st.integers(0, 30), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(at: int, bit: int) -> None:
    sealed = bytearray(Sealer([NEW], "t").seal(b"abc", nonce=NONCE))
    sealed[at] ^= 1 << bit
    assert Sealer([NEW], "t").open(bytes(sealed)) is None


@pytest.mark.parametrize("keys", [[], [b"short"], [NEW, b"x" * 31]])
def test_weak_keys_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(UsageError, match="32"):
        Sealer(keys, "tickets")
