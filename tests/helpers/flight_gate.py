"""A network that lets a gateway's datagrams through in flights, so that round trips can be counted and not timed.

What the gateway sends is kept until it and the client have been quiet for a moment; then all of it arrives at once,
which is one flight. What the client has to wait for is so many flights, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helpers.datagrams import Relay
from helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

__all__ = ["FlightGate", "flight_gate"]

QUIET: Final = 0.04
"""Seconds of silence that end a flight. More than any of the timers by which acknowledgements wait."""

LOOKS: Final = 4

T = TypeVar("T")


class FlightGate(Relay):
    """``is_busy`` says whether the gateway is at something that ends by itself."""

    def __init__(self, port: int, is_busy: Callable[[], object]) -> None:
        super().__init__(port)
        self.flights = 0
        self._is_busy = is_busy
        self._held: list[tuple[Any, bytes]] = []
        self._heard = 0
        self.on_carried = self._hear
        self._flying = self._loop.create_task(self._fly())

    def _hear(self, _: bytes) -> None:
        self._heard += 1

    def _back(self, way: Any, client: Any) -> None:
        with contextlib.suppress(OSError):
            self._held.append((client, way.recv(1 << 16)))
            self._heard += 1

    async def _fly(self) -> None:
        while True:
            # In several looks: a loop that has stood still for so long has not been quiet.
            heard = -1
            while not self._held or heard != self._heard or self._is_busy():
                heard = self._heard
                for _ in range(LOOKS):
                    await asyncio.sleep(QUIET / LOOKS)
                    if heard != self._heard:
                        break
            self.flights += 1
            held, self._held = self._held, []
            for client, data in held:
                self._carry(partial(self._to, client), data)

    def _to(self, client: Any, data: bytes) -> None:
        self._front.sendto(data, client)

    async def count(self, work: Coroutine[Any, Any, T]) -> tuple[int, T]:
        """Does ``work`` -> how many flights it waited for, and its result."""
        await until(lambda: not self._held)
        before = self.flights
        result = await work
        return self.flights - before, result

    def close(self) -> None:
        self._flying.cancel()
        super().close()


@contextlib.asynccontextmanager
async def flight_gate(port: int, is_busy: Callable[[], object]) -> AsyncIterator[FlightGate]:
    """Before the gateway at ``port`` of 127.0.0.1."""
    made = FlightGate(port, is_busy)
    try:
        yield made
    finally:
        made.close()
