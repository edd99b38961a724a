"""The workers that act as one: those that serve, and know all that is in force."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import GatewayError, WorkerLost

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Answers", "Company"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What workers have answered, by their numbers. Those that have gone meanwhile are in none of the three: others
    come in their places, and learn from the supervisor what is in force."""

    done: Mapping[int, Body]
    faults: Mapping[int, GatewayError]
    silent: Mapping[int, GatewayError]
    """Those that are there, and have not answered in time: what they were asked for they still do, in its order."""


class Company:
    """By their numbers."""

    def __init__(self) -> None:
        self._buses: dict[int, Bus] = {}

    def join(self, index: int, bus: Bus) -> None:
        """Worker ``index`` acts with the others from now on."""
        self._buses[index] = bus

    def leave(self, index: int) -> None:
        """It does not any more."""
        self._buses.pop(index, None)

    def dismiss(self, index: int) -> None:
        """Ends a worker that is not as the others are: the next one will be."""
        bus = self._buses.pop(index, None)
        if bus is not None:
            bus.abort()

    def tell(self, kind: str, body: Body, only: Collection[int]) -> None:
        """Says something to these that has no answer."""
        for index in only:
            if (bus := self._buses.get(index)) is not None:
                bus.tell(kind, body)

    async def ask(
        self, kind: str, body: Body | None = None, *, timeout: float, only: Collection[int] | None = None
    ) -> Answers:
        """What all of them answer, or ``only`` these, within ``timeout`` seconds."""
        buses = {index: bus for index, bus in self._buses.items() if only is None or index in only}
        answers = await asyncio.gather(
            *(bus.ask(kind, body, timeout=timeout) for bus in buses.values()), return_exceptions=True
        )
        done: dict[int, Body] = {}
        faults: dict[int, GatewayError] = {}
        silent: dict[int, GatewayError] = {}
        for (index, bus), answer in zip(buses.items(), answers, strict=True):
            match answer:
                case WorkerLost() if bus.is_open:
                    silent[index] = answer
                case WorkerLost():
                    pass
                case GatewayError():
                    faults[index] = answer
                case BaseException():
                    raise answer
                case body:
                    done[index] = body
        return Answers(done, faults, silent)
