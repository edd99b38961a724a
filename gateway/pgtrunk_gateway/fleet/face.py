"""What administrators do to a fleet, whichever worker's console they are at, and signals: all of it in the supervisor.

Rule 1: one thing at a time. Who comes second finds what the first has made of it, as on one gateway.
Rule 2: what cannot be done on one worker is taken back on the others; where nothing takes it back, it is reported.
Rule 3: RELOAD and SET have two phases. All workers prepare; if all of them have, all change, else none does.
Rule 4: what is in force (:class:`Standing`) is known to a new worker before it joins, and changes only together with
those who have joined. So nobody can miss anything between its start and that.
Rule 5: nothing waits here for sessions or backends; see :mod:`~pgtrunk_gateway.fleet.settling`.

A command goes on to its end where the worker dies at whose console it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pgtrunk_gateway.errors import ConfigError, GatewayError, ShuttingDown
from pgtrunk_gateway.fleet.changing import Changing
from pgtrunk_gateway.fleet.company import Answers, Company
from pgtrunk_gateway.fleet.ledger import Ledger, as_totals, from_totals
from pgtrunk_gateway.fleet.settling import until_settled
from pgtrunk_gateway.fleet.standing import INVERSE
from pgtrunk_gateway.stats.recorder import Recorder

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.console.operations import PoolerState
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.standing import Standing
    from pgtrunk_gateway.reloading import OpenLog

__all__ = ["Face"]

log = logging.getLogger(__name__)

_ACTS: Final = 5.0
"""Seconds that a worker has for what it does at once."""
_Result = TypeVar("_Result")


class Face:
    """Of one fleet; an :class:`~pgtrunk_gateway.console.operations.Operations` of all of it, for signals.

    ``adopt`` is told of each configuration that comes into force, ``stopping`` says whether the fleet is.
    """

    @property
    def remarks(self) -> Sequence[str]:
        return ()

    def __init__(
        self,
        loaded: Loaded,
        *,
        open_log: OpenLog | None = None,
        adopt: Callable[[Loaded], None] = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.company = Company()
        self.ledger = Ledger()
        self._changing = Changing(loaded, self.company, open_log=open_log, adopt=adopt)
        self._stopping = stopping
        self.acted: Callable[[str, str | None], None] = lambda verb, database: None
        """Is told of each verb that is done, and its database: for those who are to do the same."""
        self._token = asyncio.Lock()
        """Of rule 1."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._recorder = Recorder(
            self.ledger.read, period=lambda: self._config.stats_period, logs=lambda: self._config.log_stats
        )

    @property
    def standing(self) -> Standing:
        """What a new worker must know."""
        return self._changing.standing

    @property
    def state(self) -> PoolerState:
        return self.standing.state

    @property
    def _config(self) -> Config:
        return self._changing.loaded.config

    def inherit(self, standing: Body) -> None:
        """For an online restart: the fleet before this one was paused, perhaps."""
        self._changing.inherit(standing)

    async def follow(self, verb: str, database: str | None) -> None:
        """Does what the next fleet has done (:attr:`acted`), as far as it means something here."""
        with contextlib.suppress(GatewayError):
            await self._go_on(self._act(verb, database))

    def start(self) -> None:
        """Averages are taken from now on."""
        self._recorder.start()

    def close(self) -> None:
        """The fleet ends: what is under way is given up."""
        self._recorder.stop()
        for task in self._tasks:
            task.cancel()

    # -- workers -------------------------------------------------------------------------------------------------------

    def enters(self, index: int, bus: Bus) -> None:
        """Worker ``index`` is about to start, and may say on ``bus``:"""
        bus.on("join", partial(self._join, index, bus))
        bus.on("steer", self._steer)
        bus.on("settle", self._settle)
        bus.on("deserted", lambda _: self._deserted())
        bus.on("totals", lambda body: self.ledger.tell(index, from_totals(body["totals"])))
        bus.on("departed", lambda _: {"totals": as_totals(self.ledger.departed)})

    def leaves(self, index: int) -> None:
        """It is gone."""
        self.company.leave(index)
        self.ledger.leave(index)
        if self.standing.suspended:
            self._go_on(self._deserted())

    async def _join(self, index: int, bus: Bus, body: Body) -> Body:
        """A worker is ready, and knows what was in force when it was number ``number``."""
        async with self._token:
            if body["number"] != self.standing.number:
                return {"standing": self.standing.as_body()}
            self.company.join(index, bus)
        return {}

    async def _steer(self, body: Body) -> Body:
        remarks: list[str] = []
        try:
            match body["verb"]:
                case "reload":
                    await self._go_on(self._reload())
                case "set":
                    await self._go_on(self._set(body["key"], body["value"]))
                case verb:
                    remarks = await self._go_on(self._act(verb, body.get("database"), body.get("session")))
        except ConfigError as error:
            # It has not the shape of an error that travels.
            return {"fault": str(error)}
        return {"remarks": remarks}

    async def _settle(self, body: Body) -> Body:
        return {"left": await self.settle(body["verb"], body["database"], body["left"], body["patience"])}

    def _go_on(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Future[_Result]:
        """Does ``work`` to its end, whoever is waiting for it, or not any more."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    # -- the configuration ---------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        await self._go_on(self._reload())

    async def _reload(self) -> None:
        async with self._token:
            await self._changing.reload()

    async def set(self, key: str, value: str) -> None:
        await self._go_on(self._set(key, value))

    async def _set(self, key: str, value: str) -> None:
        async with self._token:
            await self._changing.set(key, value)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def pause(self, database: str | None) -> None:
        await self._go_on(self._act("pause", database))
        await until_settled(partial(self.settle, "pause", database))

    async def resume(self, database: str | None) -> None:
        if self._stopping():
            raise ShuttingDown(severity="ERROR")
        await self._go_on(self._act("resume", database))

    async def settle(
        self, verb: str, database: str | None, left: Sequence[int] | None, patience: float
    ) -> Sequence[int]:
        """Asks these workers (None: all) whether they are at rest within ``patience`` seconds -> those that are not."""
        body = {"verb": verb, "database": database, "patience": patience}
        answers = await self.company.ask("settle", body, timeout=patience + _ACTS, only=left)
        for fault in answers.faults.values():
            raise fault
        return [*(index for index, answer in answers.done.items() if not answer["settled"]), *answers.silent]

    async def _act(self, verb: str, database: str | None, session: int | None = None) -> list[str]:
        """Does it everywhere -> what the administrator is to know beside that it is done."""
        async with self._token:
            before = self.standing
            after = before.act(verb, database, self._config)
            answers = await self.company.ask(
                "act", {"verb": verb, "database": database, "session": session}, timeout=_ACTS
            )
            if session is not None:
                return _found(answers)
            if answers.faults and (verb in INVERSE or not answers.done):
                if verb in INVERSE and after.changes(before):
                    reached = [*answers.done, *answers.silent]
                    self.company.tell("act", {"verb": INVERSE[verb], "database": database}, only=reached)
                raise _told(answers)
            self._changing.standing = after
        self.acted(verb, database)
        return _remarks(answers)

    async def _deserted(self) -> None:
        """Nobody may be at any console who would end the suspension."""
        answers = await self.company.ask("consoles", timeout=_ACTS)
        if self.standing.suspended and not any(body["sessions"] for body in answers.done.values()):
            with contextlib.suppress(GatewayError):
                await self._go_on(self._act("resume", None))


def _found(answers: Answers) -> list[str]:
    """Of a session that one worker may have: it is enough that one has found it."""
    if answers.done:
        return []
    for error in (*answers.silent.values(), *answers.faults.values()):
        raise error
    raise GatewayError("no worker is there", sqlstate="57P03", severity="ERROR")


def _remarks(answers: Answers) -> list[str]:
    silent = [f"{error.message}: it will do so late" for error in answers.silent.values()]
    return silent + [f"worker {index} has not done so: {error.message}" for index, error in answers.faults.items()]


def _told(answers: Answers) -> GatewayError:
    """The error of the command, out of those of workers."""
    index, fault = next(iter(answers.faults.items()))
    if not answers.done and not answers.silent:
        return fault
    return GatewayError(
        fault.message,
        detail=f"That is what worker {index} says; on the others all is as it was. {fault.detail or ''}".rstrip(),
        hint=fault.hint,
        severity="ERROR",
        sqlstate=fault.sqlstate,
    )
