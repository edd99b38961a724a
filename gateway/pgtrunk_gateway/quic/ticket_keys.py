"""The keys that session tickets are sealed with, renewed by time.

Every ``PERIOD`` the key is replaced by one that is derived from it and from which it cannot be told. So all workers
that began with the same key have the same one at any time, without a word between them, and whoever learns a key learns
nothing of tickets that were sealed more than two periods before. One key is kept to open what it has sealed: a ticket
lives no longer than a period. Keys from a file are the operator's to replace; they are a plain ``Sealer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.quic.sealing import Sealer, derive

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PERIOD", "PURPOSE", "TicketKeys"]

PERIOD = 7200
"""Seconds for which a key seals: no less than a ticket lives, so that the key before the current one is enough."""

PURPOSE = "ticket"


class TicketKeys:
    """The current key and the one before. ``number`` counts periods since 1970."""

    def __init__(self, keys: Sequence[bytes], number: int) -> None:
        """Takes the key of period ``number`` and, where it is known, that of the period before."""
        self._keys = tuple(keys[:2])
        self._number = number
        self._sealer = Sealer(self._keys, PURPOSE)

    @classmethod
    def begin(cls, key: bytes, now: float) -> TicketKeys:
        """Begins with a random key."""
        return cls((key,), int(now // PERIOD))

    def at(self, now: float) -> Sealer:
        """Returns what seals and opens now. A clock that was set back changes nothing."""
        periods = int(now // PERIOD) - self._number
        if periods > 0:
            for _ in range(min(periods, 2 * 24 * 366)):  # a clock that is years ahead must not take for ever
                self._keys = (derive(self._keys[0], "next ticket key"), self._keys[0])
            self._number += periods
            self._sealer = Sealer(self._keys, PURPOSE)
        return self._sealer

    def known(self, now: float) -> tuple[int, tuple[bytes, ...]]:
        """Returns the number and the keys, the current one first: what another process has to begin with."""
        self.at(now)
        return self._number, self._keys
