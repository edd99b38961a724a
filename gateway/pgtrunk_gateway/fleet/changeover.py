"""Online restart: what a supervisor does with its own parts when it takes over from another, and another from it.

Taking over: workers start as always, up to where they would read datagrams. When the last of them is there, the old
fleet retires: it reads no datagrams any more. What comes meanwhile waits in the kernel. Then the UDP groups get their
new size, the workers read, and when all serve, what listens is ours; until then the old fleet accepts. Before that
moment nothing has changed for anybody, and a fault leaves the old fleet as it was.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.errors import ConfigError, GatewayError
from pgtrunk_gateway.fleet.beyond import Beyond, Way
from pgtrunk_gateway.fleet.inventory import Inventory, places_of
from pgtrunk_gateway.fleet.meeting import Meeting, point_of
from pgtrunk_gateway.fleet.outgoing import Outgoing
from pgtrunk_gateway.fleet.steering import LET_GO, MOST_ELDERS, elders_of, next_generation
from pgtrunk_gateway.fleet.succession import Succession
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.heritage import Heritage
    from pgtrunk_gateway.fleet.supervisor import Supervisor
    from pgtrunk_gateway.fleet.teller import Teller
    from pgtrunk_gateway.quic.elders import Elders

__all__ = ["Changeover"]

log = logging.getLogger(__name__)

_RETIRES: Final = 10.0
"""Seconds in which each worker must leave its sockets."""
_PASSES: Final = 5.0
"""Seconds for the workers to take the connections that are on their way to them."""
_LOOK: Final = 0.01


class Changeover:
    """A part of ``fleet``, and the last of its parts; ``heritage``: what it takes over."""

    def __init__(self, fleet: Supervisor, heritage: Heritage | None) -> None:
        self.retired = False
        """Whether another one reads the sockets."""
        self.moved: Callable[[int], None] = lambda pid: None
        """Is told who has taken over."""
        self.beyond = Beyond(lambda: fleet.workers)
        self._fleet = fleet
        self._heritage = heritage
        self._leaving: tuple[Outgoing, ...] = () if heritage is None else heritage.inventory.elders
        self._arrived: set[int] = set()
        self._committed: asyncio.Future[dict[str, list[int]]] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._succession: Succession | None = None
        if heritage is None:
            self._committed.set_result({})
        else:
            fleet.teller.wait()

    @property
    def generation(self) -> int:
        """The fleet's own number: behind that before it, and so that ids tell it from all that are leaving."""
        return 0 if self._heritage is None else next_generation(self._heritage.inventory.generation, self._leaving)

    @property
    def teller(self) -> Teller:
        return self._fleet.teller

    @property
    def hands_off(self) -> bool:
        """Whether the sockets are another one's to read."""
        return self.retired or not self._committed.done()

    @property
    def leaving(self) -> tuple[Outgoing, ...]:
        """The fleets that are leaving; their descriptors stay open here as long as they may be asked for."""
        if self._heritage is None or not self._heritage.is_there:
            self._forget_leaving()
        return self._leaving

    def elders(self) -> Elders | None:
        """Those, for who is at the sockets in a worker's place."""
        return elders_of([
            replace(each, outlets={index: os.dup(end) for index, end in each.outlets.items()}) for each in self._leaving
        ])  # fmt: skip

    def _forget_leaving(self) -> None:
        for each in self._leaving:
            for descriptor in each.outlets.values():
                os.close(descriptor)
        self._leaving = ()

    # -- workers -------------------------------------------------------------------------------------------------------

    def enters(self, index: int, bus: Bus) -> None:
        """Worker ``index`` is about to start."""
        bus.on(LET_GO, lambda _: self._let_go(index))

    def serves(self, index: int) -> None:
        """It is ready; one without UDP sockets has asked for none."""
        self._arrive(index)

    def leaves(self, index: int) -> None:
        """It is gone."""
        if self.retired and not self._fleet.stopping.patience < Patience.CLIENTS:
            # So the next fleet sees that nobody is there for its connections, and says so to their clients.
            self._fleet.sockets.forward[index][0].close()

    async def _let_go(self, index: int) -> Body:
        if self.retired:
            raise GatewayError("this fleet has been taken over, and starts no workers any more", sqlstate="57P03")
        await self._fleet.caretaking.let_go(index)
        if self._committed.done():
            return {}
        self._arrive(index)
        return {"begin": await asyncio.shield(self._committed)}

    # -- taking over ---------------------------------------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        self._arrived.add(index)
        if self._task is None and not self._committed.done() and len(self._arrived) == self._fleet.count:
            self._task = asyncio.get_running_loop().create_task(self._commit(), name="online restart")

    async def _commit(self) -> None:
        assert self._heritage is not None
        try:
            begin = await self._heritage.retire()
            self._fleet.sockets.settle()
        except GatewayError as error:
            self._committed.set_exception(error)
        except OSError as error:
            fault = GatewayError(f"the UDP sockets cannot be more than there were: {error}", sqlstate="58000")
            self._committed.set_exception(fault)
        else:
            self._committed.set_result(begin)

    async def serve(self) -> None:
        """All workers serve: what is taken over is ours. Raises :class:`ConfigError` where that is not to be had."""
        heritage, fleet = self._heritage, self._fleet
        if heritage is None:
            return
        try:
            await asyncio.shield(self._committed)
            fleet.operations.acted = heritage.act
            await heritage.serve(fleet.teller)
        except GatewayError as error:
            raise ConfigError(f"-R: the running gateway cannot be taken over: {error}") from error
        self.beyond.join(Way.OLDER, heritage.bus)
        fleet.sockets.own()
        fleet.stopping.others = heritage.gone

    def hurry(self, patience: Patience) -> None:
        """This fleet ends, and so do those before it."""
        if self._heritage is not None and self._heritage.serves:
            self._heritage.hurry(patience)

    # -- being taken over ----------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """The next one may come from now on."""
        path = point_of(self._fleet.loaded.config)
        if path is None:
            log.info("no online restart (-R): neither pidfile nor unix_socket_dir says where the next gateway can ask")
            return
        try:
            meeting = Meeting(path)
        except OSError as error:
            log.warning("no online restart (-R): %s", error)
            return
        self._succession = Succession(self, meeting)

    @property
    def standing(self) -> Body:
        return self._fleet.operations.standing.as_body()

    def inventory(self) -> Inventory:
        fleet = self._fleet
        if fleet.stopping.begun or self.retired:
            raise GatewayError("it is ending", sqlstate="57P03")
        if fleet.operations.state == "suspended":
            raise GatewayError("it is suspended: RESUME first", sqlstate="55000")
        sockets = fleet.sockets
        elders = _alive(self.leaving)
        if len(elders) >= MOST_ELDERS:
            raise GatewayError(
                f"{len(elders)} gateways before it still have clients; wait, or end the oldest of them (SIGINT)",
                sqlstate="55006",
            )
        own = {index: end.fileno() for index, (_, end) in enumerate(sockets.forward)}
        return Inventory(
            generation=fleet.generation,
            places=places_of(fleet.loaded.config),
            secrets=fleet.secrets,
            tcp=tuple(sock.fileno() for sock in sockets.tcp),
            unix=None if sockets.unix is None else sockets.unix.fileno(),
            path=sockets.path,
            port=sockets.port,
            udp=tuple(tuple(sock.fileno() for sock in each) for each in sockets.group),
            elders=(*elders, Outgoing(fleet.generation, fleet.count, own)),
        )

    async def retire(self) -> Body:
        fleet = self._fleet
        self.retired = True
        await fleet.caretaking.let_all_go()
        answers = await fleet.hub.ask_all("retire", timeout=_RETIRES)
        begin: dict[str, list[int]] = {}
        for index, answer in answers.items():
            if isinstance(answer, GatewayError):
                if index in fleet.workers:
                    await self.unretire()
                    raise answer
            else:
                begin |= {each: [fleet.generation, index] for each in answer["begin"]}
        return {"begin": begin}

    async def _leave(self) -> None:
        """What was accepted here is served here: its worker must have it before it looks whether it has anybody."""
        await self._passed()
        self._fleet.stopping.ask(Patience.CLIENTS)

    async def _passed(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PASSES
        while True:
            if self._fleet.acceptor.is_idle or loop.time() > deadline:
                return
            await asyncio.sleep(_LOOK)

    async def unretire(self) -> None:
        fleet = self._fleet
        self.retired = False
        if fleet.stopping.begun:
            return
        # The other one may have given the group another size.
        fleet.sockets.settle()
        await fleet.hub.ask_all("unretire", timeout=_RETIRES)

    def succeeded(self, bus: Bus, pid: int) -> None:
        fleet = self._fleet
        self.beyond.join(Way.NEWER, bus)
        for front in ("tcp", "unix"):
            fleet.acceptor.stop(front)
        fleet.sockets.disown()
        self.moved(pid)
        log.info("online restart: pid %d serves; going on here until all clients have left", pid)
        self._task = asyncio.get_running_loop().create_task(self._leave(), name="online restart")

    def deserted(self) -> None:
        if not self._fleet.closed:
            log.error("the gateway that has taken over has gone: ending when no transaction runs")
            self._fleet.stopping.ask(Patience.TRANSACTIONS)

    def hurried(self, patience: Patience) -> None:
        self._fleet.stopping.ask(patience)

    async def follow(self, verb: str, database: str | None) -> None:
        await self._fleet.operations.follow(verb, database)

    async def close(self) -> None:
        """Nothing is left of it."""
        if self._succession is not None:
            await self._succession.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._committed.done():
            self._committed.cancel()
        elif not self._committed.cancelled():
            # It may be that nobody has asked.
            self._committed.exception()
        if self._heritage is not None:
            await self._heritage.close()
        self._forget_leaving()


def _alive(leaving: Sequence[Outgoing]) -> tuple[Outgoing, ...]:
    """Those of them that have workers still."""
    found = []
    for each in leaving:
        outlets = {index: end for index, end in each.outlets.items() if _is_read(end)}
        if outlets:
            found.append(replace(each, outlets=outlets))
    return tuple(found)


def _is_read(descriptor: int) -> bool:
    """Whether anybody has the other end; what is sent to find out is too short to be anything."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        try:
            sock.send(b"")
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
