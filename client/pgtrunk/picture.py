"""The picture of a trunk at one moment, put together from who knows what: see telemetry.py for what its parts mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.stages import Stages
from pgtrunk.telemetry import ConnectionStats, PathStats, SessionStats, TransferStats, TrunkStats, WaitStats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgtrunk.allocation import Allocation
    from pgtrunk.connection import Connection
    from pgtrunk.telemetry import Counters
    from pgtrunk.waiter import SlotWaiter

__all__ = ["picture"]


def picture(
    core: Allocation[SlotWaiter], counters: Counters, connections: Mapping[int, Connection], closing: int
) -> TrunkStats:
    """What a trunk is doing and what it has done. May be called from any thread.

    ``connections`` are those that are open, by their links' numbers; ``closing`` is how many are on their way out.
    """
    # Copied in one go each: things go on while somebody in another thread looks.
    links, opened = list(core.links.values()), list(connections.items())
    rules = core.rules
    figures = {number: figures for number, each in opened if (figures := each.figures()) is not None}
    sessions = {link.number: link.sessions for link in links}
    return TrunkStats(
        connections=ConnectionStats(
            connecting=sum(not link.is_ready for link in links),
            ready=sum(link.is_ready and not link.is_avoided for link in links),
            suspect=sum(link.is_suspect and not link.is_leaving for link in links),
            leaving=sum(link.is_leaving for link in links),
            closing=closing,
            max=rules.connections,
            opened=counters.connections_opened,
            failed=counters.connections_failed,
            lost=counters.connections_lost,
            reconnects=counters.reconnects,
            goaways=counters.goaways,
            suspected=counters.connections_suspected,
            replaced=counters.connections_replaced,
            resumed=counters.connections_resumed,
            early=counters.connections_early,
            refused_early=counters.connections_refused_early,
        ),
        sessions=SessionStats(
            in_use=sum(sessions.values()),
            max=rules.connections * rules.streams_per_connection,
            asking=sum(each.asking for each in figures.values()),
            opened=counters.streams_opened,
            closed=counters.streams_closed,
            lost=counters.streams_lost,
            moved=counters.sessions_moved,
            cancels_in_use=sum(link.cancels for link in links),
            cancels_sent=counters.cancels_sent,
            round_trips_saved=counters.round_trips_saved,
        ),
        waits=WaitStats(
            waiting=core.waiting,
            failed=counters.acquires_failed,
            total=counters.acquire_wait,
            longest=counters.acquire_wait_max,
        ),
        stages=Stages.of(counters.acquire_waits),
        path=tuple(PathStats.of(number, sessions.get(number, 0), each) for number, each in figures.items()),
        transfer=TransferStats.of(figures.values(), counters.transferred),
    )
