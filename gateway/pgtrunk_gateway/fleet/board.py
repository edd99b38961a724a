"""Numbers that all processes of a fleet can see at once: memory that they share, a row for each worker.

No locks: each number has one writer, the worker whose row it is or the supervisor, and is eight octets on an address
that eight divides, which no machine writes in halves. Two numbers may be of two moments.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from typing import Final

__all__ = ["Board", "Field"]

_OCTETS: Final = 8
_WORKERS_OWN: Final = 16
"""Numbers in the half of a row that the worker writes; the supervisor's half is as long. Each half is a multiple of the
64 octets that caches hold together, so that who writes disturbs nobody who reads another half."""
_ROW: Final = 2 * _WORKERS_OWN


class Field(IntEnum):
    """A number of a row, and its place there."""

    # The worker's own.
    SESSIONS = 0
    """Sessions, those in their login too."""
    TAKEN = 1
    """Connections that the supervisor has passed to it and that are among SESSIONS, or are over; a total."""
    ADMITTED = 2
    """Sessions that count against max_client_conn."""
    BEATS = 3
    """Grows as long as its event loop turns."""
    # The supervisor's.
    PID = _WORKERS_OWN
    """Of the process that serves; 0: none does."""
    RESTARTS = _WORKERS_OWN + 1
    """Workers that had this number before."""
    GENERATION = _WORKERS_OWN + 2
    """Of the fleet that it belongs to."""
    STARTED = _WORKERS_OWN + 3
    """When it began to serve, in seconds since the epoch."""


class Board:
    """One process' view of it. To be closed."""

    def __init__(self, descriptor: int, count: int) -> None:
        """Of ``count`` workers, in the memory behind ``descriptor``, which is the board's from now on."""
        self.descriptor = descriptor
        self.count = count
        self._memory = mmap.mmap(descriptor, _size(count))
        self._numbers = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, count: int) -> Board:
        """A new one, all zero."""
        descriptor = os.memfd_create("pgtrunk-board")
        try:
            os.ftruncate(descriptor, _size(count))
            return cls(descriptor, count)
        except BaseException:
            os.close(descriptor)
            raise

    def read(self, index: int, field: Field) -> int:
        """A number of worker ``index``, as it is now."""
        return self._numbers[index * _ROW + field]

    def write(self, index: int, field: Field, value: int) -> None:
        """Only for who that number belongs to."""
        self._numbers[index * _ROW + field] = value

    def clear(self, index: int) -> None:
        """For the supervisor: the worker is gone, and its half of the row begins anew."""
        for place in range(index * _ROW, index * _ROW + _WORKERS_OWN):
            self._numbers[place] = 0

    def close(self) -> None:
        self._numbers.release()
        self._memory.close()
        os.close(self.descriptor)


def _size(count: int) -> int:
    return count * _ROW * _OCTETS
