"""The keys of sessions that have ended: remembered for a while, and not without bound."""

from __future__ import annotations

from pgtrunk_gateway.cancel.ended import EndedKeys
from pgtrunk_gateway.cancel.keys import CancelKey


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
