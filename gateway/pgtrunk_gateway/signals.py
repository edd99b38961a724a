"""What each signal does: PgBouncer's meanings, and its words in the log.

    SIGTERM  ends the gateway when all clients have left; a second one: now
    SIGINT   ends it when no transaction runs; a second one: now
    SIGQUIT  ends it now
    SIGHUP   reads the configuration again
    SIGUSR1  pauses all databases
    SIGUSR2  resumes them

How the end goes is in :mod:`~pgtrunk_gateway.stopping`, what pausing and reloading are in
:mod:`~pgtrunk_gateway.operations`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any, Protocol

from pgtrunk_gateway.console.operations import done
from pgtrunk_gateway.errors import ConfigError, GatewayError
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pgtrunk_gateway.console.operations import Done, PoolerState
    from pgtrunk_gateway.notify import Notifier

__all__ = ["catch_signals", "next_patience", "serve_until_stopped", "unless_stopped"]

log = logging.getLogger(__name__)

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_OTHERS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_WORDS = {
    Patience.CLIENTS: "shutting down, waiting for all clients disconnect",
    Patience.TRANSACTIONS: "shutting down, waiting for all servers connections to be released",
    Patience.NONE: "fast exit",
}


def catch_signals() -> asyncio.Queue[int]:
    """The signals from now on. To be called before there is anything that the end of the process must not leave."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for signum in (*_STOPS, *_OTHERS):
        loop.add_signal_handler(signum, signals.put_nowait, signum)
    return signals


def next_patience(now: Patience, signum: int) -> Patience:
    """What the gateway waits for after ``signum``."""
    asked = {signal.SIGTERM: Patience.CLIENTS, signal.SIGINT: Patience.TRANSACTIONS}.get(
        signal.Signals(signum), Patience.NONE
    )
    if asked == now:
        return Patience.NONE
    return max(now, asked)


async def unless_stopped(starting: Coroutine[Any, Any, None], signals: asyncio.Queue[int]) -> bool:
    """Whether what starts came to its end; a signal that asks for the end cancels it. Other signals stay for later."""
    start = asyncio.ensure_future(starting)
    later: list[int] = []
    try:
        while not start.done():
            signum = asyncio.ensure_future(signals.get())
            await asyncio.wait([start, signum], return_when=asyncio.FIRST_COMPLETED)
            if not signum.done():
                signum.cancel()
            elif signum.result() in _STOPS:
                log.info("got %s before it served", signal.Signals(signum.result()).name)
                return False
            else:
                later.append(signum.result())
        await start
        return True
    finally:
        for each in later:
            signals.put_nowait(each)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)


async def serve_until_stopped(gateway: Served, signals: asyncio.Queue[int], notifier: Notifier) -> None:
    """Serves until a signal or the console ends it. Signals that come behind that change nothing."""
    obedience = asyncio.ensure_future(_Obedience(gateway, notifier).run(signals))
    over = asyncio.ensure_future(gateway.stopping.over())
    try:
        done, _ = await asyncio.wait([obedience, over], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        notifier.stopping()
        for task in (obedience, over):
            task.cancel()
        await asyncio.gather(obedience, over, return_exceptions=True)
        loop = asyncio.get_running_loop()
        # Handled until the loop closes: the default would end the process at once, with its files left behind.
        for signum in (*_STOPS, *_OTHERS):
            loop.add_signal_handler(signum, _too_late, signum)


class Ending(Protocol):
    """The end of what is served."""

    @property
    def patience(self) -> Patience: ...

    @property
    def begun(self) -> bool: ...

    def ask(self, patience: Patience) -> None: ...

    async def over(self) -> None: ...


class Verbs(Protocol):
    """What else signals ask for."""

    @property
    def state(self) -> PoolerState: ...

    async def reload(self) -> None: ...

    async def pause(self, database: str | None) -> None: ...

    def resume(self, database: str | None) -> Done: ...


class Served(Protocol):
    """A gateway, or the supervisor of several."""

    @property
    def stopping(self) -> Ending: ...

    @property
    def operations(self) -> Verbs: ...


class _Obedience:
    """Does what signals ask for, in their order; but what asks for the end waits for nothing that takes its time, as a
    reload does of which a worker that is stuck knows nothing."""

    def __init__(self, gateway: Served, notifier: Notifier) -> None:
        self._gateway = gateway
        self._notifier = notifier
        self._pausing: asyncio.Task[None] | None = None
        """Nobody waits for it, but somebody must hold it."""

    async def run(self, signals: asyncio.Queue[int]) -> None:
        others: asyncio.Queue[int] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._hear(signals, others)), asyncio.ensure_future(self._act(others))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_pausing()

    async def _hear(self, signals: asyncio.Queue[int], others: asyncio.Queue[int]) -> None:
        while True:
            signum = await signals.get()
            if signum in _STOPS:
                self._stop(signum)
            else:
                others.put_nowait(signum)

    async def _act(self, others: asyncio.Queue[int]) -> None:
        while True:
            match await others.get():
                case signal.SIGHUP:
                    await self._reload()
                case signal.SIGUSR1:
                    await self._pause()
                case _:
                    await self._resume()

    def _stop(self, signum: int) -> None:
        stopping, name = self._gateway.stopping, signal.Signals(signum).name
        patience = next_patience(stopping.patience, signum)
        if self._gateway.operations.state == "suspended":
            log.warning("got %s: suspend was in progress, going down immediately", name)
            patience = Patience.NONE
        elif patience is Patience.NONE and stopping.begun and signum != signal.SIGQUIT:
            log.info("got %s while shutting down, fast exit", name)
        else:
            log.info("got %s, %s", name, _WORDS[patience])
        self._notifier.stopping()
        stopping.ask(patience)

    async def _reload(self) -> None:
        log.info("got SIGHUP, re-reading config")
        self._notifier.reloading()
        # It has been logged, or the fleet is going down, and nothing has changed.
        with contextlib.suppress(ConfigError, GatewayError):
            await self._gateway.operations.reload()
        self._notifier.ready()

    async def _stop_pausing(self) -> None:
        if self._pausing is not None:
            self._pausing.cancel()
            await asyncio.gather(self._pausing, return_exceptions=True)
            self._pausing = None

    async def _pause(self) -> None:
        if self._gateway.operations.state != "active":
            log.info("got SIGUSR1, but already paused/suspended")
            return
        log.info("got SIGUSR1, pausing all activity")
        # It may still wait, where somebody at the console has resumed.
        await self._stop_pausing()
        self._pausing = asyncio.get_running_loop().create_task(self._paused(), name="pause")

    async def _paused(self) -> None:
        # Somebody at the console may have been quicker, or have resumed meanwhile.
        with contextlib.suppress(GatewayError):
            await self._gateway.operations.pause(None)

    async def _resume(self) -> None:
        operations = self._gateway.operations
        if self._gateway.stopping.begun:
            log.info("got SIGUSR2 while shutting down, ignoring")
        elif operations.state == "active":
            log.info("got SIGUSR2, but not paused/suspended")
        else:
            log.info("got SIGUSR2, continuing from %s", "PAUSE" if operations.state == "paused" else "SUSPEND")
            await self._stop_pausing()
            # Somebody at the console may be quicker.
            with contextlib.suppress(GatewayError):
                await done(operations.resume(None))


def _too_late(signum: int) -> None:
    log.info("got %s, which changes nothing: shutting down now", signal.Signals(signum).name)
