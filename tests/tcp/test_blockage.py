"""What is known of UDP, and when it is looked at again."""

from __future__ import annotations

from pgtrunk.backoff import Backoff
from pgtrunk.tcp.blockage import Blockage


def test_it_is_news_once() -> None:
    it = Blockage()
    assert not it.is_there
    assert it.found(10.0)
    assert it.is_there
    assert not it.found(11.0)
    assert it.over(25.0) == 15.0
    assert not it.is_there
    assert it.over(26.0) is None
    assert it.found(30.0)


def test_looks_come_further_and_further_apart() -> None:
    it = Blockage(Backoff(base=2.0, factor=2.0, ceiling=10.0))
    it.found(0.0)
    # What is under way over UDP is the first.
    assert it.retry_at == 0.0
    times = []
    for _ in range(5):
        it.still_there(100.0, 0.0)
        times.append(it.retry_at - 100.0)
    assert times == [2.0, 4.0, 8.0, 10.0, 10.0]
    it.still_there(100.0, 0.5)
    assert it.retry_at == 107.5


def test_a_new_blockage_begins_anew() -> None:
    it = Blockage(Backoff(base=2.0, factor=2.0, ceiling=10.0))
    it.found(0.0)
    for _ in range(4):
        it.still_there(0.0, 0.0)
    it.over(50.0)
    it.found(60.0)
    it.still_there(60.0, 0.0)
    assert it.retry_at == 62.0
