"""The keys of cancel requests: PgBouncer's layout, and who may use them."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.cancel.keys import KEY_OCTETS, CancelKey, mint, peer_of
from pgtrunk_gateway.cancel.registry import Registry


@given(noise=st.binary(min_size=KEY_OCTETS, max_size=KEY_OCTETS), peer_id=st.integers(0, 16383))
def test_the_layout(noise: bytes, peer_id: int) -> None:
    key = mint(peer_id, noise)
    octets = key.pid.to_bytes(4, "big") + key.secret
    assert key.pid > 0
    assert len(octets) == 8
    assert octets[0] & 0x80 == 0
    assert int.from_bytes(octets[1:3], "little") == peer_id or key.pid == 1
    assert octets[7] & 0b11 == 0b11
    if key.pid != 1:
        assert peer_of(key.pid) == peer_id


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(CancelKey(7, b"abcd"))


def test_a_key_finds_its_session_with_any_hop_count_and_no_other_way() -> None:
    registry: Registry[str] = Registry(0, os.urandom)
    key = registry.register("session")
    assert registry.find(key.pid, key.secret) == "session"
    for hops in range(4):
        assert registry.find(key.pid, key.secret[:3] + bytes([key.secret[3] & ~3 | hops])) == "session"
    wrong = bytes([key.secret[0] ^ 1]) + key.secret[1:]
    assert registry.find(key.pid, wrong) is None
    assert registry.find(key.pid + 1, key.secret) is None
    assert registry.find(key.pid, b"") is None
    assert registry.find(key.pid, key.secret * 8) is None
    registry.forget(key)
    assert registry.find(key.pid, key.secret) is None
    assert len(registry) == 0


def test_sessions_may_share_a_pid() -> None:
    """Half of a key's pid is the gateway's own number: with thousands of sessions there is none left that is unique."""
    noises = iter([b"aaaabbbb", b"aaaacccc", b"aaaadddd"])
    registry: Registry[int] = Registry(0, lambda _: next(noises))
    keys = [registry.register(number) for number in range(3)]
    assert len({key.pid for key in keys}) == 1
    assert len(registry) == 3
    assert [registry.find(key.pid, key.secret) for key in keys] == [0, 1, 2]
    registry.forget(keys[1])
    registry.forget(keys[1])
    assert [registry.find(key.pid, key.secret) for key in keys] == [0, None, 2]
    registry.forget(keys[0])
    registry.forget(keys[2])
    assert len(registry) == 0


def test_there_are_keys_for_more_sessions_than_pids() -> None:
    registry: Registry[int] = Registry(7, os.urandom)
    keys = [registry.register(number) for number in range(40_000)]
    assert len({key.pid for key in keys}) <= 1 << 15
    assert registry.find(keys[-1].pid, keys[-1].secret) == 39_999
