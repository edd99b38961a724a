"""Where first packets wait until their handshakes may begin: in order, and as long as somebody may be waiting.

A thousand clients that have lost their gateway come back at once, and a handshake takes a millisecond or two of this
process, in which nobody else is served. So one begins in each turn of the event loop, and those that are in progress,
and sessions, come first. Addresses take turns; of one address it is first come, first served. What waits costs a few
kilobytes. Pure: `now` is an argument, in seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgtrunk_gateway.quic.udp import Path

__all__ = ["Anteroom", "Entry"]

MAX_WAITING: Final = 4096
"""Handshakes that may wait."""
MAX_WAITING_PER_ADDRESS: Final = 1024
"""Of these, from one IPv4 address or one IPv6 /64: the clients behind one router, after their gateway's death. None
that has more than there are places left gets another one: a few that take all they can leave some for others."""
MAX_DATAGRAMS: Final = 4
"""Datagrams that are kept of one that waits: a long ClientHello takes two, and early data may come along. What it sends
again is left out: it will be sent again."""
MAX_OCTETS: Final = 2048
"""Octets of a datagram that is kept. A client knows nothing of the path yet, so none sends as many (RFC 9000 section
14.1); and fragments may bring 64 KiB, which nobody has counted."""
PATIENCE: Final = 5.0
"""Seconds after which its client has given up, by its own connect_timeout."""


@dataclass(slots=True, eq=False)
class Entry:
    """One that waits."""

    destination_id: bytes
    site: bytes
    proved: bool
    """Whether a Retry token has shown its address."""
    original_id: bytes | None
    """As in `Opening`."""
    since: float
    datagrams: list[tuple[bytes, Path]] = field(default_factory=list)


class Anteroom:
    """All of them."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, Entry] = {}
        self._sites: dict[bytes, deque[Entry]] = {}
        """In the order of their turns."""

    def __len__(self) -> int:
        return len(self._by_id)

    def more(self, destination_id: bytes, data: bytes, path: Path) -> bool:
        """Another datagram of one that waits; False: it is of none."""
        entry = self._by_id.get(destination_id)
        if entry is None:
            return False
        if len(entry.datagrams) < MAX_DATAGRAMS and len(data) <= MAX_OCTETS:
            entry.datagrams.append((data, path))
        return True

    def enter(self, entry: Entry) -> bool:
        """One more; False: there is no room for it."""
        queue = self._sites.get(entry.site)
        left = MAX_WAITING - len(self._by_id)
        if not left or any(len(data) > MAX_OCTETS for data, _ in entry.datagrams):
            return False
        if queue is not None and (len(queue) >= MAX_WAITING_PER_ADDRESS or len(queue) > left):
            return False
        if queue is None:
            queue = self._sites[entry.site] = deque()
        queue.append(entry)
        self._by_id[entry.destination_id] = entry
        return True

    def firsts(self) -> Iterator[Entry]:
        """The first of each address, in the order of their turns. Whoever takes one stops there."""
        return iter([queue[0] for queue in self._sites.values()])

    def take(self, entry: Entry) -> None:
        """One of the firsts is let in, or has gone; its address has had its turn."""
        queue = self._sites.pop(entry.site)
        queue.popleft()
        del self._by_id[entry.destination_id]
        if queue:
            self._sites[entry.site] = queue

    def forget_late(self, now: float) -> int:
        """Those whose clients have given up -> how many."""
        count = 0
        # Who came first is first in each order.
        while (entry := next(iter(self._by_id.values()), None)) is not None and now - entry.since > PATIENCE:
            queue = self._sites[entry.site]
            queue.popleft()
            if not queue:
                del self._sites[entry.site]
            del self._by_id[entry.destination_id]
            count += 1
        return count
