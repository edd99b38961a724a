"""Seconds by arm."""

from __future__ import annotations

from netem.stopwatch import Stopwatch


def test_what_comes_before_an_arm_is_done_counts_for_it() -> None:
    now = 100.0
    watch = Stopwatch(lambda: now)
    laps = []
    for arm, seconds in (("quic", 3.0), ("tcp", 4.0), ("quic", 5.5)):
        now += seconds
        laps.append(watch.lap(arm))
    assert laps == [3.0, 4.0, 5.5]
    assert watch.arms == {"quic": 8.5, "tcp": 4.0}
    assert str(watch) == "quic 8 s, tcp 4 s"
    assert watch.total == 12.5
