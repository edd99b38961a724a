"""SHOW for a whole fleet: what a worker's console collects from the others, and what it tells them.

Long answers go in pages, so that no worker's loop stands still for one; who asks has all of it before the first row is
sent, since rows of several workers are to be merged.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.others import Collected
from pgtrunk_gateway.console.registry import SHOWS
from pgtrunk_gateway.errors import GatewayError, InternalError, WorkerLost
from pgtrunk_gateway.fleet.board import Field
from pgtrunk_gateway.fleet.command import Command
from pgtrunk_gateway.fleet.ledger import as_totals

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.console.registry import Show
    from pgtrunk_gateway.fleet.board import Board
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.member import Member
    from pgtrunk_gateway.gateway import Gateway

__all__ = ["Voice"]

_ANSWERS: Final = 1.0
"""Seconds in which a worker must answer; the others are shown all the same."""
_PAGE: Final = 500
"""Rows that are made and sent at a time."""
_KEEPS: Final = 10.0
"""Seconds that the rest of an answer is kept for who does not fetch it."""
_TELLS: Final = 5.0
"""Seconds between two reports to the supervisor of what has been counted, at most."""
_LEAST: Final = 0.5


class Voice:
    """Of ``gateway``, which is ``member``; an :class:`~pgtrunk_gateway.console.others.Others`."""

    def __init__(self, gateway: Gateway, member: Member, board: Board | None = None) -> None:
        self._gateway = gateway
        self._member = member
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._rests: dict[int, tuple[Iterator[Row], asyncio.TimerHandle]] = {}
        """What is left of answers, by their numbers."""
        self._told: Body = {}
        self._timer: asyncio.TimerHandle | None = None
        member.on("show", self._asked)
        member.on("show on", self._asked_on)

    def start(self) -> None:
        """The supervisor is told from now on what is counted here."""
        self._tell()

    def close(self) -> None:
        """The gateway ends."""
        if self._timer is not None:
            self._timer.cancel()
        for _, timer in self._rests.values():
            timer.cancel()
        self._rests.clear()
        self._tell_totals()

    def command(self) -> Operations:
        return Command(self._gateway, self._member.bus)

    def deserted(self) -> None:
        self._member.bus.tell("deserted")

    # -- what this worker collects -------------------------------------------------------------------------------------

    async def collect(self, show: Show, *, by_worker: bool) -> Collected:
        remarks: dict[int, str] = {}
        if by_worker:
            tables = await self._tables(show, remarks)
            rows: Sequence[Row] = [(*row, index) for index, table in sorted(tables.items()) for row in table]
        elif show.merge is None:
            rows = await self._made(show)
        else:
            told = {show.name: list((await self._tables(show, remarks)).values())}
            for name in show.also:
                told[name] = await self._beside(name, remarks)
            rows = list(show.merge(self._gateway.console.view, told))
        return Collected(rows, [remarks[index] for index in sorted(remarks)])

    async def _beside(self, name: str, remarks: dict[int, str]) -> list[Sequence[Row]]:
        match name:
            case "ROSTER":
                return [self._roster()]
            case "DEPARTED":
                try:
                    answer = await self._member.bus.ask("departed", timeout=_ANSWERS)
                except WorkerLost as error:
                    remarks[-1] = f"what workers counted that have gone is not in these: {error.message}"
                    return []
                return [[[database, *totals] for database, totals in answer["totals"].items()]]
            case _:
                return list((await self._tables(SHOWS[name], remarks)).values())

    async def _tables(self, show: Show, remarks: dict[int, str]) -> dict[int, Sequence[Row]]:
        """The rows of all workers by their numbers, this one's own first; in ``remarks`` is who is missing."""
        member = self._member
        # The first: where it cannot be shown, nobody need be asked.
        tables: dict[int, Sequence[Row]] = {member.index: await self._made(show)}
        others = await member.ask_others("show", {"show": show.name}, timeout=_ANSWERS)
        for index, answer in sorted(others.items()):
            rows: list[Row] = []
            try:
                async for page in self._pages(index, answer):
                    rows += page
            except GatewayError as error:
                remarks[index] = f"worker {index} is not among these, or not with all of it: {error.message}"
            tables[index] = rows
        for index in set(range(member.count)) - tables.keys():
            remarks[index] = f"worker {index} is not among these: it is not there at the moment"
        return tables

    async def _pages(self, index: int, answer: Body | GatewayError) -> AsyncIterator[list[Row]]:
        while True:
            if isinstance(answer, GatewayError):
                raise answer
            yield answer["rows"]
            if answer["rest"] is None:
                return
            answer = await self._member.ask_worker(index, "show on", {"rest": answer["rest"]}, timeout=_ANSWERS)

    async def _made(self, show: Show) -> list[Row]:
        made: list[Row] = []
        rows = iter(self._rows(show))
        while page := list(itertools.islice(rows, _PAGE)):
            made += page
            await asyncio.sleep(0)
        return made

    def _roster(self) -> list[Row]:
        """Of each worker its number, pid and state, how often it was replaced, and for how long it has served."""
        board = self._board
        if board is None:
            return []
        return [
            (
                index,
                board.read(index, Field.PID) or None,
                "silent" if board.read(index, Field.PID) else "starting",
                board.read(index, Field.RESTARTS),
                int(time.time()) - board.read(index, Field.STARTED) if board.read(index, Field.PID) else 0,
            )
            for index in range(board.count)
        ]

    # -- what it tells the others --------------------------------------------------------------------------------------

    def _rows(self, show: Show) -> Iterable[Row]:
        if "DEPARTED" in show.also:
            # What is shown of this worker is not to be less when it has gone.
            self._tell_totals()
        return show.rows(self._gateway.console.view)

    def _asked(self, body: Body) -> Body:
        show = SHOWS.get(body["show"])
        if show is None:
            raise InternalError(f"there is no SHOW {body['show']}")
        return self._page(iter(self._rows(show)))

    def _asked_on(self, body: Body) -> Body:
        rows, timer = self._rests.pop(body["rest"], (None, None))
        if rows is None or timer is None:
            raise InternalError("the rest of the answer was not fetched in time")
        timer.cancel()
        return self._page(rows)

    def _page(self, rows: Iterator[Row]) -> Body:
        page = [list(row) for row in itertools.islice(rows, _PAGE)]
        if len(page) < _PAGE:
            return {"rows": page, "rest": None}
        number = next(self._numbers)
        self._rests[number] = rows, self._loop.call_later(_KEEPS, self._rests.pop, number, None)
        return {"rows": page, "rest": number}

    # -- what the supervisor is told -----------------------------------------------------------------------------------

    def _tell(self) -> None:
        self._tell_totals()
        pause = min(_TELLS, max(self._gateway.config.stats_period / 2, _LEAST))
        self._timer = self._loop.call_later(pause, self._tell)

    def _tell_totals(self) -> None:
        totals = as_totals(self._gateway.console.recorder.read())
        if totals != self._told:
            self._told = totals
            self._member.bus.tell("totals", {"totals": totals})
