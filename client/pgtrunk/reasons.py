"""Why somebody gets no slot: the facts of the moment in which that is decided. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgtrunk.decisions import Full, Unreachable

if TYPE_CHECKING:
    from pgtrunk.decisions import Waiter
    from pgtrunk.links import Links
    from pgtrunk.outage import Reach
    from pgtrunk.queues import Queues
    from pgtrunk.rules import Rules

__all__ = ["full", "unreachable"]


def full(waiter: Waiter, now: float, rules: Rules, links: Links, reach: Reach, queues: Queues[Any]) -> Full:
    """No stream became free on the connections that there are."""
    ready, outage = links.ready, reach.outage
    return Full(
        waited=now - waiter.since,
        waiting=len(queues.sessions),
        oldest=queues.oldest(now),
        ready=len(ready),
        connections=rules.connections,
        sessions=sum(link.sessions for link in ready),
        streams_per_connection=rules.streams_per_connection,
        limited_by_gateway=sum(link.is_limited_by_gateway for link in ready),
        own_limit=next((link.own_limit for link in ready if link.is_limited_by_gateway), None),
        cause=None if outage is None else outage.cause,
        suspect=len(links.suspects),
    )


def unreachable(waiter: Waiter, now: float, links: Links, reach: Reach) -> Unreachable:
    """No connection is there, or none that answers."""
    outage, usable = reach.outage, links.usable
    tried = [link.suspect_since for link in links.suspects] + [link.since for link in usable]
    return Unreachable(
        waited=now - waiter.since,
        failures=0 if outage is None else reach.failures,
        down=now - (outage.since if outage is not None else min(tried, default=now)),
        retry_in=None if outage is None or usable else max(0.0, outage.retry_at - now),
        cause=None if outage is None else outage.cause,
    )
