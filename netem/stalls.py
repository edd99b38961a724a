"""Whom a lost packet costs how much: sessions that stalled, for each packet that the link dropped. Pure.

A drop is a time and the flow, told by the client's port. An answer is late that took much longer than the link's round
trip. A session is taken to wait for a dropped packet when it had an answer outstanding on that flow at the drop, and
that answer came late. What the drop held up is repaired when the answer to the youngest of these requests arrives; who
asked on the flow before then, and was late as well, has stalled too: on one TCP connection, all who asked meanwhile.

A late answer whose flow lost several packets counts for each. That overstates flows with many packets, not with few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ANY_FLOW", "Drop", "Late", "Stalls", "stalls"]

ANY_FLOW = 0
"""The flow of all sessions and drops, where there is one flow only."""
_SLACK = 0.001
"""Seconds by which a link's time may be ahead of the client's: it looks at packets in ticks."""


@dataclass(frozen=True, slots=True)
class Drop:
    """``at``: seconds of the machine's monotonic clock."""

    at: float
    flow: int


@dataclass(frozen=True, slots=True)
class Late:
    """An answer that came late. Times as a drop's."""

    session: int
    flow: int
    sent: float
    answered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """What drops cost. ``waiting`` counts sessions that were outstanding; ``stalled`` those that were held up too."""

    drops: int
    harmless: int
    """Drops that made nobody wait."""
    waiting_mean: float
    waiting_max: int
    stalled_mean: float
    stalled_max: int

    def figures(self) -> dict[str, float]:
        """For a result; ``stalled_sessions`` is the mean for each drop."""
        return {
            "drops": self.drops,
            "harmless_drops": self.harmless,
            "waiting_sessions": self.waiting_mean,
            "waiting_sessions_max": self.waiting_max,
            "stalled_sessions": self.stalled_mean,
            "stalled_sessions_max": self.stalled_max,
        }


def stalls(drops: Sequence[Drop], late: Iterable[Late]) -> Stalls:
    """Of all drops of a run, and all late answers."""
    flows: dict[int, list[Late]] = {}
    for each in late:
        flows.setdefault(each.flow, []).append(each)
    by_flow = {flow: _Flow(answers) for flow, answers in flows.items()}
    counts = [_count(drop, by_flow) for drop in drops]
    number = max(1, len(counts))
    return Stalls(
        drops=len(counts),
        harmless=sum(not stalled for _, stalled in counts),
        waiting_mean=round(sum(waiting for waiting, _ in counts) / number, 3),
        waiting_max=max((waiting for waiting, _ in counts), default=0),
        stalled_mean=round(sum(stalled for _, stalled in counts) / number, 3),
        stalled_max=max((stalled for _, stalled in counts), default=0),
    )


class _Flow:
    """The late answers of one flow, by the time of their sending."""

    def __init__(self, answers: list[Late]) -> None:
        self.answers = sorted(answers, key=lambda each: each.sent)
        self.longest = max(each.answered - each.sent for each in answers)
        self._sent = [each.sent for each in self.answers]

    def sent_between(self, begin: float, end: float) -> Sequence[Late]:
        return self.answers[bisect_left(self._sent, begin) : bisect_left(self._sent, end)]


def _count(drop: Drop, flows: Mapping[int, _Flow]) -> tuple[int, int]:
    """Sessions that waited at the drop, and those that stalled by it."""
    flow = flows.get(drop.flow)
    if flow is None:
        return 0, 0
    sent = flow.sent_between(drop.at - flow.longest, drop.at + _SLACK)
    waiting = [each for each in sent if each.answered >= drop.at]
    if not waiting:
        return 0, 0
    repaired = waiting[-1].answered
    held_up = {each.session for each in (*waiting, *flow.sent_between(drop.at + _SLACK, repaired))}
    return len({each.session for each in waiting}), len(held_up)
