"""The supervisor's part in steering datagrams: somebody is always at a worker's UDP sockets, the worker or a caretaker
(:mod:`pgtrunk_gateway.quic.caretaker`), and never both.

A worker that starts asks for its sockets before it reads from them; then the caretaker has let go.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fleet.forwarding import ElderOutlets, Inlet, Outlets
from pgtrunk_gateway.quic.caretaker import Caretaker
from pgtrunk_gateway.quic.connection_id import GENERATIONS
from pgtrunk_gateway.quic.elders import MOST_ELDERS, Elder, Elders
from pgtrunk_gateway.quic.steering import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.outgoing import Outgoing

__all__ = ["LET_GO", "MOST_ELDERS", "Caretaking", "WorkerSockets", "elders_of", "next_generation"]

log = logging.getLogger(__name__)

LET_GO: Final = "let go of the udp sockets"
"""What a worker asks for."""


@dataclass(frozen=True, slots=True)
class WorkerSockets:
    """What the supervisor has of one worker's."""

    udp: Sequence[socket.socket]
    """One for each address."""
    inlet: socket.socket
    """Where datagrams come that others have received for it."""
    outlet: socket.socket
    """The other end."""


class Caretaking:
    """A part of the fleet. The sockets stay the supervisor's: what is read from are other descriptors of the same."""

    def __init__(
        self,
        sockets: Sequence[WorkerSockets],
        keys: Sequence[bytes],
        *,
        generation: int = 0,
        serving: Callable[[], Iterable[int]],
        ends: Callable[[], bool],
        elders: Elders | None = None,
    ) -> None:
        """``serving`` says which workers are there now, ``ends`` whether none is to come any more. ``elders``: fleets
        that are leaving, whose connections are not gone."""
        self._elders = elders
        self._sockets = sockets
        self._keys = keys
        self._generation = generation
        self._serving = serving
        self._ends = ends
        self._outlets = Outlets({index: each.outlet.dup() for index, each in enumerate(sockets)})
        self._cares: dict[int, _Care] = {}

    @property
    def absent(self) -> set[int]:
        """The workers that a caretaker stands in for."""
        return set(self._cares)

    def enters(self, index: int, bus: Bus) -> None:
        """Worker ``index`` is about to start."""
        bus.on(LET_GO, lambda _: self.let_go(index))

    def leaves(self, index: int) -> None:
        """It is gone."""
        if self._sockets[index].udp and index not in self._cares and not self._ends():
            place = Place(index, len(self._sockets), self._generation)
            caretaker = Caretaker(
                place,
                self._keys,
                forward=self._outlets.send,
                living=lambda: sorted(self._serving()),
                elders=self._elders,
            )
            self._cares[index] = _Care(caretaker, self._sockets[index])

    async def let_all_go(self) -> None:
        """Nobody stands in for anybody any more."""
        for index in list(self._cares):
            await self.let_go(index)

    async def close(self) -> None:
        await self.let_all_go()
        self._outlets.close()
        if self._elders is not None:
            self._elders.close()

    async def let_go(self, index: int) -> None:
        care = self._cares.pop(index, None)
        if care is not None:
            await care.end()


class _Care:
    """A caretaker, and what it reads from."""

    def __init__(self, caretaker: Caretaker, sockets: WorkerSockets) -> None:
        self._caretaker = caretaker
        self._sockets = sockets
        self._inlet: Inlet | None = None
        self._task = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        try:
            for sock in self._sockets.udp:
                await self._caretaker.attach(sock.dup())
            self._inlet = Inlet(self._sockets.inlet.dup(), self._caretaker.take)
        except OSError as error:
            log.error("nobody stands in for a worker: %s", error)

    async def end(self) -> None:
        """Returns when nothing is read any more."""
        # To its end, not cancelled: a cancelled uvloop leaves a transport behind that goes on to read.
        await asyncio.gather(self._task, return_exceptions=True)
        self._caretaker.close()
        if self._inlet is not None:
            self._inlet.close()


def next_generation(last: int, leaving: Sequence[Outgoing]) -> int:
    """The number of the fleet behind ``last``: connection ids tell it from all of those that are leaving."""
    taken = {each.generation % GENERATIONS for each in leaving}
    number = last + 1
    while number % GENERATIONS in taken:
        number += 1
    return number


def elders_of(leaving: Sequence[Outgoing]) -> Elders | None:
    """The fleets that are leaving, whose outlets are taken over; None where there is none."""
    if not leaving:
        return None
    socks = {
        (each.generation, index): socket.socket(fileno=descriptor)
        for each in leaving
        for index, descriptor in each.outlets.items()
    }
    outlets = ElderOutlets(socks)
    return Elders([Elder(each.generation, each.count) for each in leaving], outlets.send, outlets.close)
