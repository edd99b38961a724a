"""About how long a run takes, so that a bar can show it and people know whether to wait. From what stored runs took.

Besides its load and warm-up a run takes the time to open its sessions: some at a time, each a few round trips long, and
longer where their own packets are lost. All else is the same for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netem.plan import AT_ONCE

if TYPE_CHECKING:
    from netem.plan import Arm, ArmKind, Load
    from netem.spec import Direction, LinkSpec

__all__ = ["opening", "seconds"]

_BESIDES: Final = 1.8
"""Seconds: the link's measurement, the end of what was under way, and the end of the client."""
_ROUND_TRIPS: Final = 7
"""Of one session: its connection, its login, its statement prepared, and asked once."""
_BUSY: Final = 0.001
"""Seconds of everybody's work for one session."""
_PER_LOSS: Final = 18.0
"""Seconds that each turn takes longer for all of its packets lost: TCP waits 200 ms for an answer, and one second for
that to its first packet, and the slowest session of a turn is in the way of others."""
_CARRIED: Final[tuple[ArmKind, ...]] = ("quic", "sidecar", "mux")
"""Arms whose sessions share connections that are open already: a loss among many packets is soon noticed."""


def seconds(arm: Arm, load: Load, link: LinkSpec, warmup: float) -> float:
    """Of one run, all in all."""
    if load.kind == "connect":
        # To open sessions is the load, and nothing comes ahead of it.
        return load.seconds + _BESIDES
    return load.seconds + warmup + opening(arm, link) + _BESIDES


def opening(arm: Arm, link: LinkSpec) -> float:
    """Seconds until the sessions are there that the arm has ahead of its load."""
    if arm.per_request:
        return 0.0
    sessions = arm.initial or arm.sessions
    turns = max(1.0, sessions / AT_ONCE)
    lost = 0.0 if arm.kind in _CARRIED else (_lost(link.there) + _lost(link.back)) / 2
    return turns * (_ROUND_TRIPS * link.rtt + _PER_LOSS * lost) + sessions * _BUSY


def _lost(direction: Direction) -> float:
    """The share of packets, over a long time."""
    if direction.burst is None:
        return direction.loss
    begins, ends = direction.burst
    return begins / (begins + ends) if begins else 0.0
