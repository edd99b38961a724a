"""How large a datagram may be on one path: a search by probes of what gets through (DPLPMTUD, RFC 8899; RFC 9000
section 14.3). It knows no packet and no clock: probing.py sends what it asks for, and says what became of it.

Rule 1: nothing above ``BASE`` octets is sent that a probe of that size has not proved. ``BASE`` itself is taken for
        granted: the handshake has filled datagrams of it both ways, and none is ever smaller (RFC 9000 section 14).
Rule 2: nothing is probed before a full datagram has left: to a connection that sends small messages only, size is
        worth nothing. So an idle connection sends no probe either.
Rule 3: the largest size first, since most paths carry it; then by halves among those sizes that paths commonly have.
Rule 4: a size is given up after ``TRIES`` probes in a row that nobody acknowledged, or at once where our own kernel
        refuses it (EMSGSIZE). What is lost with a probe is padding, and congestion control does not hear of it.
Rule 5: what was given up is tried again after ``RAISE_TIME``, as rule 2 has it.
Rule 6: a black hole: where ``BLACK_HOLE`` times in a row datagrams above ``BASE`` were lost, or not acknowledged in
        time, and none came through in between, the path has become narrower. ``BASE`` again, and another search after
        ``PAUSE``. A path that was out of order for some time looks the same; then the pause is all that it costs.
Rule 7: another path is another search.

        state      event          next       what is done
        BASE       a full one     SEARCHING  probe the ceiling; after PAUSE, where a black hole was found
        SEARCHING  acked          SEARCHING  that is the size; probe above it ...
        SEARCHING  acked          COMPLETE   ... if there is anything above
        SEARCHING  given up       SEARCHING  probe below it ...
        SEARCHING  given up       COMPLETE   ... if there is anything between
        COMPLETE   a full one     SEARCHING  after RAISE_TIME, and below the ceiling only
        any        black hole     BASE
        any        new path       BASE
        OFF        any            OFF
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import Literal

__all__ = ["BASE", "PathMtu", "Search", "State", "header_size", "sizes"]

PathMtu = Literal["auto", "off"]
"""auto: by the rules above; off: datagrams are never larger than ``BASE``."""

BASE = 1200
"""Octets of UDP payload that each path must carry which carries QUIC at all; 1248 with the headers of IPv6, whose links
carry 1280."""

MOST = 16383
"""The largest size that is ever tried: our STREAM frames have lengths of two octets."""

TRIES = 3
"""RFC 8899 section 5.1.2, MAX_PROBES."""

RAISE_TIME = 600.0
"""Seconds; RFC 8899 section 5.1.1, PMTU_RAISE_TIMER."""

BLACK_HOLE = 3
PAUSE = 60.0
"""Seconds."""

LINKS = (1280, 1320, 1360, 1400, 1420, 1440, 1460, 1480, 1492, 1500, 2304, 4352, 9000)
"""MTUs that paths commonly have: IPv6's least, tunnels of many kinds, 1420 WireGuard, 1480 IP in IP, 1492 PPPoE, 1500
Ethernet, 2304 wireless, 4352 FDDI and ATM, 9000 jumbo frames."""


class State(Enum):
    """Where the search is; see the table."""

    OFF = auto()
    BASE = auto()
    SEARCHING = auto()
    COMPLETE = auto()


def header_size(host: str) -> int:
    """Octets of IP and UDP headers on the way to an address."""
    return 48 if ":" in host and not host.lower().startswith("::ffff:") else 28


def sizes(limit: int, header: int) -> list[int]:
    """The sizes to try, ascending and above ``BASE``, up to ``limit`` octets of UDP payload."""
    limit = min(limit, MOST)
    found = {mtu - header for mtu in LINKS if BASE < mtu - header <= limit}
    return sorted(found | ({limit} if limit > BASE else set()))


class Search:
    """The size of one path's datagrams. Times are in seconds, sizes in octets of UDP payload."""

    def __init__(self) -> None:
        self.size = BASE
        """What may be sent now."""
        self.state = State.OFF
        self.epoch = 0
        """Grows whenever what was learned before is worth nothing any more."""
        self.at = inf
        """When the probe that is under way is given up: a time at which to call ``expired``."""
        self._sizes: list[int] = []
        self._low = self._high = 0
        self._tries = 0
        self._under_way = 0
        self._next_at = self._now = -inf
        self._losses = 0

    def __repr__(self) -> str:
        return f"<Search {self.state.name} {self.size}>"

    @property
    def probe(self) -> int:
        """The size to probe now; 0 where there is nothing to send, or the answer is still out."""
        return 0 if self._under_way or self.state is not State.SEARCHING else self._candidate

    @property
    def _candidate(self) -> int:
        top = len(self._sizes) - 1
        return self._sizes[top if self._high > top else (self._low + self._high) // 2]

    # -- what happens

    def begin(self, limit: int, header: int) -> None:
        """Another path, by which no more than ``limit`` may be sent: rule 7."""
        self._sizes = sizes(limit, header)
        self._back(State.BASE if self._sizes else State.OFF, -inf)

    def filled(self, now: float) -> None:
        """A full datagram was sent: rules 2 and 5."""
        if self.state in (State.BASE, State.COMPLETE) and now >= self._next_at:
            # Of the sizes, those below ``_low`` are proved and those from ``_high`` on are given up.
            self._low = sum(size <= self.size for size in self._sizes)
            self._high = len(self._sizes)
            self._tries, self._now = 0, now
            self._search()

    def sent(self, now: float, patience: float) -> None:
        """The probe has left; no answer after ``patience`` seconds is one."""
        self._under_way, self._now = self._candidate, now
        self.at = now + patience

    def acked(self, size: int) -> None:
        """A probe of that size was acknowledged, however late."""
        if self.state is State.OFF or size not in self._sizes or size <= self.size:
            return
        self.size = size
        self._losses = 0
        if self.state is State.SEARCHING:
            self._low = max(self._low, self._sizes.index(size) + 1)
            self._answered()
            self._search()

    def lost(self, size: int) -> None:
        """A probe of that size was lost; what an earlier path or search has sent does not count."""
        if size != self._under_way:
            return
        self._answered(kept=True)
        self._tries += 1
        if self._tries >= TRIES:
            self._give_up(size)

    def expired(self, now: float) -> None:
        """``at`` has come."""
        if now >= self.at:
            self.lost(self._under_way)

    def refused(self, size: int) -> None:
        """Our own kernel takes no datagram of that size (EMSGSIZE): rule 4. Nor one of its present size, perhaps."""
        if size <= BASE or self.state is State.OFF:
            return
        if size <= self.size:
            self._back(State.BASE, -inf)
        elif self.state is State.SEARCHING:
            self._give_up(size)

    def large_lost(self, now: float) -> bool:
        """Datagrams above ``BASE`` were lost, all at once: rule 6. True when that makes a black hole."""
        if self.size == BASE:
            return False
        self._losses += 1
        if self._losses < BLACK_HOLE:
            return False
        self._back(State.BASE, now + PAUSE)
        return True

    def large_acked(self) -> None:
        """One above ``BASE`` came through."""
        self._losses = 0

    # -- the search itself

    def _search(self) -> None:
        if self._low < min(self._high, len(self._sizes)):
            self.state = State.SEARCHING
        else:
            self.state = State.COMPLETE
            self._next_at = inf if self.size == self._sizes[-1] else self._now + RAISE_TIME

    def _give_up(self, size: int) -> None:
        self._answered()
        self._high = min(self._high, sum(each < size for each in self._sizes))
        self._search()

    def _answered(self, *, kept: bool = False) -> None:
        self._under_way, self.at = 0, inf
        if not kept:
            self._tries = 0

    def _back(self, state: State, next_at: float) -> None:
        self.size, self.state = BASE, state
        self.epoch += 1
        self._next_at = next_at
        self._losses = 0
        self._answered()
