"""Whether another connection is to be dialled now, and if not now, when. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtrunk.link import Link
    from pgtrunk.links import Links
    from pgtrunk.outage import Reach
    from pgtrunk.queues import Queues
    from pgtrunk.rules import Rules

__all__ = ["Need"]


class Need:
    """What those who wait need at once, and what can be had calmly since nobody waits.

    The latter is a link that is to be kept (``min_connections``), one for sessions that are to move, and one in the
    place of another whose time is over.
    """

    def __init__(self, rules: Rules, links: Links, reach: Reach, queues: Queues[Any]) -> None:
        self._rules = rules
        self._links = links
        self._reach = reach
        self._queues = queues
        self.expected = rules.streams_per_connection
        """Sessions that a link is expected to take, by the last that became ready."""
        self.calm_at = 0.0
        """Before this, nothing is dialled unless somebody waits."""

    def is_due(self, now: float) -> bool:
        """Whether a link is to be dialled now."""
        if self._is_waited_for:
            return self._may_dial(now)
        return self._is_short and now >= self.calm_at and self._may_dial(now, calm=True)

    def replacement(self, now: float) -> Link | None:
        """The link whose time is over and which is still needed: another is dialled before it is left. One by one, and
        one more than ``connections`` meanwhile."""
        old = self._expired(now)
        return None if self._links.connecting or now < self._reach.next_try(calm=True) else old

    def times(self, now: float) -> list[float]:
        """When to ask again."""
        times = [self.calm_at] if self._is_short and now < self.calm_at else []
        outage = self._reach.outage
        if outage is not None:
            if now < outage.retry_at and self._is_waited_for:
                times.append(outage.retry_at)
                times += [] if self._links.usable else [outage.since + self._rules.patience]
            if now < outage.calm_at and (self._is_short or self._expired(now) is not None):
                times.append(outage.calm_at)
        return times

    @property
    def _is_waited_for(self) -> bool:
        """Whether those who wait are more than the dialled links can take."""
        waiting = len(self._queues.sessions)
        return waiting > 0 and waiting > self._links.connecting * self.expected

    @property
    def _is_short(self) -> bool:
        """Whether a link is missing though nobody waits: those to be kept are too few, or there are sessions that are
        to move, and nowhere to move to."""
        links, least = self._links, self._rules.min_connections
        are_few = least > 0 and len(links.usable) < least and not links.connecting
        return are_few or links.have_sessions_to_move

    def _may_dial(self, now: float, *, calm: bool = False) -> bool:
        links, most = self._links, self._rules.connections
        if len(links.usable) >= most or len(links) - len(links.leaving) >= 2 * most:
            return False
        if not calm:
            self._reach.forget_what_is_old(now)
        if self._reach.outage is None and not links.suspects:
            return True
        # One probe at a time finds out whether the gateway is back; the rest follow when it is.
        return now >= self._reach.next_try(calm=calm) and not links.connecting

    def _expired(self, now: float) -> Link | None:
        if len(self._links.usable) > self._rules.connections:
            # One that was suspect is back, and what took its place is there too: one of them goes once it is idle.
            return None
        for link in self._links.values():
            if now >= link.expires_at and not link.is_avoided and (link.is_kept or not link.is_idle):
                return link
        return None
