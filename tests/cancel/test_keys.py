"""The keys of cancel requests: their two layouts, and who may use them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2
from pgtrunk_gateway.cancel.keys import (
    KEY_OCTETS,
    LONG_KEY_OCTETS,
    CancelKey,
    as_minted,
    forwarded,
    hops,
    is_secret,
    mint,
    peer_of,
    protocol_of,
)
from pgtrunk_gateway.cancel.registry import Registry

LENGTHS = pytest.mark.parametrize("long", [False, True], ids=["3.0", "3.2"])


@given(noise=st.binary(min_size=KEY_OCTETS, max_size=KEY_OCTETS), peer_id=st.integers(0, 16383))
def test_the_layout_of_3_0(noise: bytes, peer_id: int) -> None:
    key = mint(peer_id, noise)
    octets = key.pid.to_bytes(4, "big") + key.secret
    assert key.pid > 0
    assert len(octets) == 8
    assert octets[0] & 0x80 == 0
    assert int.from_bytes(octets[1:3], "little") == peer_id or key.pid == 1
    assert octets[7] & 0b11 == 0b11
    if key.pid != 1:
        assert peer_of(key.pid) == peer_id


@given(noise=st.binary(min_size=LONG_KEY_OCTETS, max_size=LONG_KEY_OCTETS), peer_id=st.integers(0, 16383))
def test_the_layout_of_3_2(noise: bytes, peer_id: int) -> None:
    key = mint(peer_id, noise)
    assert key.pid == mint(peer_id, noise[:KEY_OCTETS]).pid
    assert key.secret == noise[4:]
    assert len(key.secret) == 32


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(CancelKey(7, b"abcd"))


@LENGTHS
def test_a_key_finds_its_session_and_no_other_does(long: bool) -> None:
    registry: Registry[str] = Registry(0, os.urandom)
    key = registry.register("session", long=long)
    assert len(key.secret) == (32 if long else 4)
    assert registry.find(key.pid, key.secret) == "session"
    for at in range(len(key.secret)):
        wrong = bytearray(key.secret)
        wrong[at] ^= 0x80
        assert registry.find(key.pid, bytes(wrong)) is None
    assert registry.find(key.pid + 1, key.secret) is None
    for other in (b"", key.secret[:-1], key.secret[:3], key.secret[:4] if long else key.secret * 8, key.secret + b"\0"):
        assert registry.find(key.pid, other) is None
    registry.forget(key)
    assert registry.find(key.pid, key.secret) is None
    assert len(registry) == 0


def test_hops_are_counted_in_a_short_secret_and_not_in_a_long_one() -> None:
    for octets, told in ((KEY_OCTETS, True), (LONG_KEY_OCTETS, False)):
        key = mint(7, b"\xff" * octets)
        for left in range(3):
            assert is_secret(key, key.secret[:-1] + bytes([0xFC | left])) is told


def test_where_a_peer_may_be_a_pgbouncer_all_secrets_are_short() -> None:
    registry: Registry[str] = Registry(0, os.urandom, long_keys=False)
    assert len(registry.register("session", long=True).secret) == 4
    registry.long_keys = True
    assert len(registry.register("session", long=True).secret) == 32
    assert len(registry.register("session").secret) == 4


def test_sessions_may_share_a_pid() -> None:
    """Half of a key's pid is the gateway's own number: with thousands of sessions there is none left that is unique."""
    noises = iter([b"aaaabbbb", b"aaaacccc", b"aaaa" + b"d" * 32, b"aaaa" + b"c" * 32])
    registry: Registry[int] = Registry(0, lambda _: next(noises))
    keys = [registry.register(number, long=number > 1) for number in range(4)]
    assert len({key.pid for key in keys}) == 1
    assert len(registry) == 4
    assert [registry.find(key.pid, key.secret) for key in keys] == [0, 1, 2, 3]
    registry.forget(keys[1])
    registry.forget(keys[1])
    assert [registry.find(key.pid, key.secret) for key in keys] == [0, None, 2, 3]
    for key in (keys[0], keys[2], keys[3]):
        registry.forget(key)
    assert len(registry) == 0


def test_there_are_keys_for_more_sessions_than_pids() -> None:
    registry: Registry[int] = Registry(7, os.urandom)
    keys = [registry.register(number) for number in range(40_000)]
    assert len({key.pid for key in keys}) <= 1 << 15
    assert registry.find(keys[-1].pid, keys[-1].secret) == 39_999


# -- on the way between peers ------------------------------------------------------------------------------------------


@LENGTHS
def test_a_request_can_be_forwarded_three_times(long: bool) -> None:
    key = mint(7, os.urandom(LONG_KEY_OCTETS if long else KEY_OCTETS))
    secret, seen = key.secret, [key.secret]
    for left in (3, 2, 1):
        assert hops(secret) == left
        secret = forwarded(secret)
        seen.append(secret)
    assert hops(secret) == 0
    assert {as_minted(each) for each in seen} == {key.secret}
    assert len(set(seen)) == 4
    assert {protocol_of(each) for each in seen} == {PROTOCOL_3_2 if long else PROTOCOL_3_0}


def test_hops_are_counted_as_pgbouncer_counts_them() -> None:
    """It takes 1 from the last octet, whose lowest two bits they are."""
    for octet in range(256):
        secret = bytes([1, 2, 3, octet])
        assert hops(secret) == octet & 3
        if octet & 3:
            assert forwarded(secret) == bytes([1, 2, 3, octet - 1])
        assert as_minted(secret) == bytes([1, 2, 3, octet | 3])


@pytest.mark.parametrize(
    "secret", [b"", b"abc", b"abcde", bytes(31), bytes(32) + b"\3", bytes(32) + b"\xff", bytes(256)]
)
def test_what_no_gateway_has_minted_is_not_forwarded(secret: bytes) -> None:
    assert (hops(secret), protocol_of(secret)) == (0, None)
    assert as_minted(secret) == secret
