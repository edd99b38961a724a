"""``python -m pgtrunk_gateway.fleet.worker <descriptor>``: one worker, started by the supervisor at the bus' other end.

It is a gateway like any other, but for the sockets, which it is given, and for its end: that comes when the supervisor
says so, or is gone. Signals are the supervisor's: service managers send them to all processes, so here they mean
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.fleet.board import Board
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.charter import Charter
from pgtrunk_gateway.fleet.fleet import Fleet
from pgtrunk_gateway.fleet.member import Member
from pgtrunk_gateway.fleet.standing import Standing
from pgtrunk_gateway.fleet.watchdog import Pulse
from pgtrunk_gateway.fronts.handed import Receiver
from pgtrunk_gateway.gateway import Gateway
from pgtrunk_gateway.logs import LogOutput
from pgtrunk_gateway.pool.backend import ids
from pgtrunk_gateway.running import run
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["main"]

log = logging.getLogger(__name__)

_ANSWERS: Final = 30.0
"""Seconds in which the supervisor must say who this is."""
_NOT_FOR_US: Final = (
    signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def main() -> int:
    """Returns the exit code."""
    for signum in _NOT_FOR_US:
        signal.signal(signum, signal.SIG_IGN)
    return run(_work(int(sys.argv[1])))


async def _work(descriptor: int) -> int:
    worker = _Worker()
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: worker.bus, sock=socket.socket(fileno=descriptor))
    try:
        await worker.run()
    except PgtrunkError as error:
        worker.bus.tell("failed", {"message": str(error)})
        return 1
    finally:
        worker.bus.close()
        await worker.bus.wait_closed()
    return 0


class _Worker:
    """From the charter to the end."""

    def __init__(self) -> None:
        self.bus = Bus("the supervisor", self._lost)
        self.bus.on("stop", self._stop)
        self._patience = Patience.RUNNING
        """What it has been told before there was a gateway."""
        self._gateway: Gateway | None = None

    async def run(self) -> None:
        """Raises a :class:`PgtrunkError` where it cannot start."""
        charter = Charter.from_body(await self.bus.ask("charter", timeout=_ANSWERS))
        standing = Standing.from_body(charter.standing)
        loaded = standing.loaded(charter.ini) if standing.files else load(charter.ini)
        ids.spread(charter.index, charter.count)
        _open_log(charter, loaded.config).install()
        board = Board(charter.board, charter.count)
        try:
            member = Member(charter.index, charter.count, self.bus, charter.generation)
            fleet = Fleet(charter, member, board)
            with Pulse(fleet):
                await self._serve(loaded, fleet)
        finally:
            board.close()

    async def _serve(self, loaded: Loaded, fleet: Fleet) -> None:
        async with Gateway(loaded, lambda config: _open_log(fleet.charter, config), fleet) as gateway:
            self._gateway = gateway
            self._answer(gateway)
            channel = socket.socket(fileno=fleet.charter.hand)
            receiver = Receiver(channel, gateway.fronts, fleet.count_taken)
            try:
                self.bus.tell("ready")
                gateway.stopping.ask(self._patience)
                await gateway.stopping.over()
            finally:
                # Behind it nothing may be taken that nobody serves.
                await receiver.close()

    def _answer(self, gateway: Gateway) -> None:
        """What the supervisor may ask."""
        self.bus.on("counters", lambda _: dict(gateway.counters()))
        self.bus.on("retire", lambda _: {"begin": [each.hex() for each in gateway.retire()]})
        self.bus.on("unretire", lambda _: gateway.unretire())

    def _stop(self, body: Body) -> None:
        patience = Patience(body["patience"])
        self._patience = max(self._patience, patience)
        if self._gateway is not None:
            self._gateway.stopping.ask(patience)

    def _lost(self) -> None:
        self._patience = Patience.NONE
        if self._gateway is not None and self._gateway.stopping.patience is not Patience.NONE:
            log.error("the supervisor has gone: ending at once")
            self._gateway.stopping.abandon()


def _open_log(charter: Charter, config: Config) -> LogOutput:
    return LogOutput(config.logfile, quiet=charter.quiet, verbose=config.verbose + charter.verbose)


if __name__ == "__main__":
    sys.exit(main())
