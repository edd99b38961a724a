"""The keys of sessions that have ended: remembered for a while, and not without bound."""

from __future__ import annotations

import os

import pytest

from pgtrunk_gateway.cancel.ended import EndedKeys
from pgtrunk_gateway.cancel.keys import KEY_OCTETS, LONG_KEY_OCTETS, CancelKey, forwarded, mint


def test_the_last_are_remembered() -> None:
    ended = EndedKeys(capacity=3)
    keys = [CancelKey(7, bytes([number] * 4)) for number in range(5)]
    for key in keys:
        ended.add(key)
    assert [ended.has(key.pid, key.secret) for key in keys] == [False, False, True, True, True]
    assert not ended.has(8, keys[4].secret)
    assert not ended.has(7, b"")
    assert len(ended) == 3


def test_one_that_comes_twice_counts_once() -> None:
    ended = EndedKeys(capacity=2)
    for _ in range(3):
        ended.add(CancelKey(7, b"abcd"))
    assert len(ended) == 1


@pytest.mark.parametrize("octets", [KEY_OCTETS, LONG_KEY_OCTETS], ids=["3.0", "3.2"])
def test_one_that_comes_by_peers_is_known_too(octets: int) -> None:
    ended = EndedKeys()
    key = mint(7, os.urandom(octets))
    ended.add(key)
    secret = key.secret
    for _ in range(3):
        secret = forwarded(secret)
        assert ended.has(key.pid, secret)
