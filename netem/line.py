"""One direction of the link, without a network: packets go in with a time, and come out when they are due.

The rules, in the order in which a packet meets them: it is lost, in bursts or by itself; the line is full; it waits for
the rate, or overflows its buffer; the delay and its jitter are added. Without ``reorder`` none overtakes another.
Whether a packet is lost depends on the seed and on its number in this direction alone, so two runs lose the same ones.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netem.spec import Direction

__all__ = ["Line", "LineCounters"]

_LOGGED = 20_000
"""Drops that are remembered at most."""
_HEAD = 64
"""Octets of a dropped packet that are remembered: all headers."""


@dataclass(slots=True)
class LineCounters:
    """Packets, since the line was made; octets where it says so."""

    received: int = 0
    octets: int = 0
    lost: int = 0
    overflowed: int = 0
    sent: int = 0
    deepest: int = 0
    """The most that were held at once."""
    late_sum: float = 0.0
    """Seconds that packets came out after they were due, in all."""
    late_max: float = 0.0


class Line:
    """One direction. Times are seconds of any clock that does not go back."""

    def __init__(self, direction: Direction, seed: int) -> None:
        self.counters = LineCounters()
        self.drops: deque[tuple[float, bytes]] = deque(maxlen=_LOGGED)
        """When packets were lost or overflowed since the line is as it is, and how they began."""
        self._held: deque[tuple[float, bytes]] = deque()
        self._heap: list[tuple[float, int, bytes]] = []
        self._number = 0
        self._rate_free = 0.0
        self._last_due = 0.0
        self.configure(direction, seed)

    def configure(self, direction: Direction, seed: int) -> None:
        """From now on packets are treated so, as by a new line; those that are held keep their times."""
        self.direction = direction
        self._random = Random(seed).random
        self._in_burst = False
        self.drops.clear()
        self._is_simple = not (direction.jitter or direction.rate or direction.burst or direction.reorder)

    def __len__(self) -> int:
        """Packets that are held."""
        return len(self._held) + len(self._heap)

    @property
    def next_due(self) -> float:
        """When the next packet comes out; infinity when none is held."""
        times = [self._held[0][0]] if self._held else []
        if self._heap:
            times.append(self._heap[0][0])
        return min(times, default=float("inf"))

    def admit(self, now: float, packets: Sequence[bytes]) -> None:
        """Packets come in. Hot: one call for all that were read at once."""
        counters = self.counters
        counters.received += len(packets)
        counters.octets += sum(map(len, packets))
        if self._is_simple:
            self._admit_simple(now, packets)
        else:
            for packet in packets:
                self._admit_one(now, packet)
        counters.deepest = max(counters.deepest, len(self))

    def _admit_simple(self, now: float, packets: Sequence[bytes]) -> None:
        direction, random, held = self.direction, self._random, self._held
        due = max(now + direction.delay, self._last_due)
        self._last_due = due
        loss = direction.loss
        room = direction.limit - len(self)
        for packet in packets:
            if loss and random() < loss:
                self._lose(now, packet)
            elif room <= 0:
                self._overflow(now, packet)
            else:
                room -= 1
                held.append((due, packet))

    def _admit_one(self, now: float, packet: bytes) -> None:
        direction = self.direction
        if self._is_lost():
            self._lose(now, packet)
            return
        if len(self) >= direction.limit:
            self._overflow(now, packet)
            return
        due = now
        if direction.rate:
            begins = max(self._rate_free, now)
            if direction.buffer and (begins - now) * direction.rate / 8 + len(packet) > direction.buffer:
                self._overflow(now, packet)
                return
            self._rate_free = due = begins + len(packet) * 8 / direction.rate
        due += direction.delay
        if direction.jitter:
            due = max(now, due + (2 * self._random() - 1) * direction.jitter)
        if direction.reorder:
            self._number += 1
            heapq.heappush(self._heap, (due, self._number, packet))
        else:
            self._last_due = due = max(due, self._last_due)
            self._held.append((due, packet))

    def _lose(self, now: float, packet: bytes) -> None:
        self.counters.lost += 1
        self.drops.append((now, packet[:_HEAD]))

    def _overflow(self, now: float, packet: bytes) -> None:
        self.counters.overflowed += 1
        self.drops.append((now, packet[:_HEAD]))

    def _is_lost(self) -> bool:
        direction, random = self.direction, self._random
        if direction.burst is not None:
            begins, ends = direction.burst
            if self._in_burst:
                self._in_burst = random() >= ends
            else:
                self._in_burst = random() < begins
            if self._in_burst:
                return True
        return bool(direction.loss) and random() < direction.loss

    def due(self, now: float) -> list[bytes]:
        """Takes out what is due. Hot."""
        out: list[bytes] = []
        counters, held, heap = self.counters, self._held, self._heap
        late = counters.late_sum
        while held and held[0][0] <= now:
            at, packet = held.popleft()
            out.append(packet)
            late += now - at
            if now - at > counters.late_max:
                counters.late_max = now - at
        while heap and heap[0][0] <= now:
            at, _, packet = heapq.heappop(heap)
            out.append(packet)
            late += now - at
            counters.late_max = max(counters.late_max, now - at)
        counters.late_sum = late
        counters.sent += len(out)
        return out
