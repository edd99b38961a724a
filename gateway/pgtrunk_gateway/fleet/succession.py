"""Online restart, as the running supervisor sees it: another one comes, takes over, and this one leaves when its
clients have left. The other side is :mod:`~pgtrunk_gateway.fleet.heritage`.

    inventory (asked)  the descriptors have come before; which is what, and the secrets
    retire (asked)     nobody reads datagrams here any more: the next one does
    serve (asked)      the next one serves: its bank decides from now on, and what listens is its own alone
    hurry              it is told to end, and so is this one
    act                what its administrators do (PAUSE, ...), for the sessions that are still here
    says, died         to the next one: what workers say about places, and that one has gone
    whisper, inquire (asked)  the answers

Until "serve" nothing is lost: if the next one goes before, this one goes on as if nobody had come.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk_gateway.errors import GatewayError
from pgtrunk_gateway.fleet import passing
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.meeting import check_peer
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.bus import Answer
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.inventory import Inventory
    from pgtrunk_gateway.fleet.meeting import Meeting
    from pgtrunk_gateway.fleet.teller import Teller

__all__ = ["Estate", "Succession"]

log = logging.getLogger(__name__)

_HOLD_OFF: Final = 1.0
"""Seconds for which nobody is accepted when too many files are open."""
_STARTS: Final = 150.0
"""Seconds in which one that has come must have started its workers: it gives them less."""
_SERVES: Final = 30.0
"""Seconds from then on in which it must serve. Nobody else reads datagrams meanwhile."""
_ASKED: Final = frozenset({"clients", "enlist"})
"""What workers wait for an answer to."""
_ANSWERS: Final = 60.0
"""Seconds for one. The next supervisor may ask workers in turn."""


class Estate(Protocol):
    """What there is to take over, and what that means for who had it."""

    @property
    def teller(self) -> Teller:
        """Who decides about places in Postgres."""
        ...

    @property
    def standing(self) -> Body:
        """What the console has said that the next one must know."""
        ...

    def inventory(self) -> Inventory:
        """Raises a :class:`GatewayError` where it cannot be taken over now."""
        ...

    async def retire(self) -> Body:
        """Reads no datagrams any more. Raises a :class:`GatewayError`, and then goes on."""
        ...

    async def unretire(self) -> None:
        """Goes on, after all."""

    def succeeded(self, bus: Bus, pid: int) -> None:
        """Another one serves, at the other end of ``bus``."""

    def deserted(self) -> None:
        """It has gone, while sessions are still here."""

    def hurried(self, patience: Patience) -> None:
        """It ends, and so does this one, within that patience."""

    async def follow(self, verb: str, database: str | None) -> None:
        """Does what its administrators have done."""


class Succession:
    """Of the supervisor that has ``estate``; others come by ``meeting``, which is closed here. To be closed."""

    def __init__(self, estate: Estate, meeting: Meeting) -> None:
        self._estate = estate
        self._meeting: Meeting | None = meeting
        self._visit: _Visit | None = None
        self._visits: set[_Visit] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        assert self._meeting is not None
        self._loop.add_reader(self._meeting.sock.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._meeting is not None
        try:
            sock, _ = self._meeting.sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            log.error("online restart: cannot accept: %s; trying again in %g s", error.strerror, _HOLD_OFF)
            self._loop.remove_reader(self._meeting.sock.fileno())
            self._timer = self._loop.call_later(_HOLD_OFF, self._listen)
            return
        sock.setblocking(False)
        visit = _Visit(self, self._estate)
        self._visits.add(visit)
        visit.begin(sock)

    def claim(self, visit: _Visit) -> None:
        """Raises a :class:`GatewayError` where another one is at it."""
        if self._visit not in (None, visit):
            raise GatewayError("another gateway is taking over already", sqlstate="55006")
        self._visit = visit

    def over(self, visit: _Visit) -> None:
        """It has gone, or never said what it wanted."""
        self._visits.discard(visit)
        if self._visit is visit:
            self._visit = None

    def stop(self) -> None:
        """Nobody else can come: the next one is where they have to go."""
        meeting, self._meeting = self._meeting, None
        if self._timer is not None:
            self._timer.cancel()
        if meeting is not None:
            self._loop.remove_reader(meeting.sock.fileno())
            meeting.close()

    async def close(self) -> None:
        self.stop()
        for visit in list(self._visits):
            await visit.close()


class _Visit:
    """One supervisor that has come, from its connection to its end."""

    def __init__(self, succession: Succession, estate: Estate) -> None:
        self._succession = succession
        self._estate = estate
        self._pid = 0
        self._retired = False
        self._serves = False
        self._bus = Bus("the next supervisor", self._lost)
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self, sock: socket.socket) -> None:
        self._task = asyncio.get_running_loop().create_task(self._begin(sock), name="online restart")

    async def _begin(self, sock: socket.socket) -> None:
        inventory: Inventory | GatewayError
        try:
            self._pid = check_peer(sock)
            try:
                self._succession.claim(self)
                inventory = self._estate.inventory()
            except GatewayError as error:
                inventory = error
            passing.send(sock, [] if isinstance(inventory, GatewayError) else inventory.descriptors)
        except OSError as error:
            log.warning("online restart: refused: %s", error)
            sock.close()
            self._succession.over(self)
            return
        self._due(_STARTS)
        bus = self._bus
        bus.on("inventory", lambda _: _given(inventory, self._estate.standing))
        bus.on("retire", lambda _: self._retire())
        bus.on("serve", lambda _: self._serve())
        bus.on("act", lambda body: self._follow(body))
        bus.on("hurry", lambda body: self._estate.hurried(Patience(body["patience"])))
        bus.on("whisper", lambda body: self._estate.teller.whisper(body["number"], body["kind"], body["body"]))
        bus.on("inquire", self._inquire)
        await asyncio.get_running_loop().create_unix_connection(lambda: bus, sock=sock)

    async def _retire(self) -> Body:
        log.info("online restart: pid %d takes over", self._pid)
        self._retired = True
        self._due(_SERVES)
        return await self._estate.retire()

    def _serve(self) -> Body:
        """At once: what workers say behind this comes behind what is said here."""
        self._serves = True
        self._due(None)
        body = self._estate.teller.bequeath(self)
        self._succession.stop()
        self._estate.succeeded(self._bus, self._pid)
        return body

    def _due(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._late, seconds)
        )

    def _late(self, seconds: float) -> None:
        log.error("online restart: pid %d has not come further within %g s: it may not go on", self._pid, seconds)
        self._bus.close()

    async def _follow(self, body: Body) -> None:
        await self._estate.follow(body["verb"], body["database"])

    async def _inquire(self, body: Body) -> Body:
        return await self._estate.teller.inquire(body["number"], body["kind"], body["body"], timeout=body["timeout"])

    # -- the teller's heir

    def say(self, number: int, kind: str, body: Body) -> Answer | Awaitable[Answer]:
        said = {"number": number, "kind": kind, "body": body}
        if kind in _ASKED:
            return self._bus.ask("says", said, timeout=_ANSWERS)
        self._bus.tell("says", said)
        return None

    def died(self, number: int) -> None:
        self._bus.tell("died", {"number": number})

    # -- the end

    def _lost(self) -> None:
        self._due(None)
        self._succession.over(self)
        if self._serves:
            self._estate.deserted()
        elif self._retired:
            log.warning("online restart: pid %d has gone before it served: going on here", self._pid)
            self._task = asyncio.get_running_loop().create_task(self._estate.unretire(), name="online restart")

    async def close(self) -> None:
        self._serves = self._retired = False
        self._due(None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._bus.close()
        await self._bus.wait_closed()
        self._succession.over(self)


def _given(inventory: Inventory | GatewayError, standing: Body) -> Body:
    if isinstance(inventory, GatewayError):
        raise inventory
    return {**inventory.as_body(), "standing": standing}
