"""Which signal ends the gateway how: PgBouncer's meanings.

    SIGTERM  no new sessions; wait until all clients have left (at most shutdown_timeout); a second one: now
    SIGINT   no new sessions; wait until no transaction runs (at most shutdown_timeout); a second one: now
    SIGQUIT  now

A signal that asks for less patience than the one before is obeyed; one that asks for more is not.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtrunk_gateway.gateway import Gateway

__all__ = ["Patience", "catch_signals", "next_patience", "serve_until_stopped"]

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_NOT_YET = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Patience(enum.IntEnum):
    """What a stop waits for, from most to least."""

    RUNNING = 0
    CLIENTS = 1
    TRANSACTIONS = 2
    NONE = 3


def next_patience(now: Patience, signum: int) -> Patience:
    """What the gateway waits for after ``signum``."""
    asked = {signal.SIGTERM: Patience.CLIENTS, signal.SIGINT: Patience.TRANSACTIONS}.get(
        signal.Signals(signum), Patience.NONE
    )
    if asked == now:
        return Patience.NONE
    return max(now, asked)


def catch_signals() -> asyncio.Queue[int]:
    """The signals from now on. To be called before there is anything that the end of the process must not leave."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for signum in _SIGNALS:
        loop.add_signal_handler(signum, signals.put_nowait, signum)
    for signum in _NOT_YET:
        loop.add_signal_handler(signum, _ignore, signum)
    return signals


async def serve_until_stopped(gateway: Gateway, signals: asyncio.Queue[int]) -> None:
    """Serves until a signal ends it, as patiently as the signal asks. Further signals change nothing, until the end."""
    try:
        await _stop(gateway, signals)
    finally:
        loop = asyncio.get_running_loop()
        # Handled until the loop closes: the default would end the process at once, with its files left behind.
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, _too_late, signum)


async def _stop(gateway: Gateway, signals: asyncio.Queue[int]) -> None:
    patience = Patience.RUNNING
    waiting: asyncio.Future[None] | None = None
    try:
        while patience is not Patience.NONE:
            signalled = asyncio.ensure_future(signals.get())
            awaited: list[asyncio.Future[Any]] = [signalled] if waiting is None else [signalled, waiting]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not signalled.done():
                signalled.cancel()
                break
            signum = signalled.result()
            patience = next_patience(patience, signum)
            log.info("got %s, %s", signal.Signals(signum).name, _WORDS[patience])
            if waiting is not None:
                waiting.cancel()
            waiting = _begin(gateway, patience)
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


def _begin(gateway: Gateway, patience: Patience) -> asyncio.Future[None] | None:
    if patience is Patience.CLIENTS:
        return asyncio.ensure_future(gateway.wait_for_clients())
    if patience is Patience.TRANSACTIONS:
        return asyncio.ensure_future(gateway.wait_for_transactions())
    return None


_WORDS = {
    Patience.CLIENTS: "shutting down, waiting for clients",
    Patience.TRANSACTIONS: "shutting down, waiting for transactions",
    Patience.NONE: "shutting down now",
}


def _too_late(signum: int) -> None:
    log.info("got %s, which changes nothing: shutting down now", signal.Signals(signum).name)


def _ignore(signum: int) -> None:
    log.warning("got %s, which this version does not act on yet", signal.Signals(signum).name)
