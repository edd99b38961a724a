"""The supervisor of a fleet: it has the sockets, and starts the workers, watches and ends them. It serves no SQL.

What it gives away it also keeps: sockets, channels, the board, the fleet's secrets. So a worker that is gone is
replaced by one that goes on with all of that, and its siblings notice nothing. If the supervisor itself is gone, its
workers see the end of their buses, and end at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from pgtrunk_gateway.fleet.acceptor import Acceptor, Choice
from pgtrunk_gateway.fleet.board import Board, Field
from pgtrunk_gateway.fleet.changeover import Changeover
from pgtrunk_gateway.fleet.charter import Charter, Secrets
from pgtrunk_gateway.fleet.ending import Ending
from pgtrunk_gateway.fleet.face import Face
from pgtrunk_gateway.fleet.hub import Hub
from pgtrunk_gateway.fleet.post import Post
from pgtrunk_gateway.fleet.sockets import Sockets
from pgtrunk_gateway.fleet.steering import Caretaking, WorkerSockets
from pgtrunk_gateway.fleet.teller import Teller
from pgtrunk_gateway.fleet.ticketing import Ticketing
from pgtrunk_gateway.fleet.watchdog import Watchdog
from pgtrunk_gateway.fronts.lasting_key import quic_keys
from pgtrunk_gateway.fronts.tcp import check_tuning
from pgtrunk_gateway.reloading import read_userlist
from pgtrunk_gateway.stopping import Patience
from pgtrunk_gateway.tls import TlsKeeper

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.heritage import Heritage
    from pgtrunk_gateway.reloading import OpenLog

__all__ = ["Part", "Supervisor", "worker_count"]

log = logging.getLogger(__name__)

_KEY_OCTETS: Final = 32


class Part(Protocol):
    """Something of the fleet's that the supervisor has, and whose counterparts are in the workers."""

    def enters(self, index: int, bus: Bus) -> None:
        """Worker ``index`` is about to start: handlers of what it may say belong on ``bus``."""

    def leaves(self, index: int) -> None:
        """It is gone. Comes behind each :meth:`enters`."""


def worker_count(config: Config) -> int:
    """How many processes shall serve: the key workers, or as many as there are cores that this process may use."""
    if config.workers:
        return config.workers
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Supervisor:
    """Of ``count`` workers. ``async with`` starts it, and closes it at once at the end.

    ``open_log``: how a reload gets the log that the configuration asks for; without it the log stays as it is.
    ``quiet`` and ``verbose``: what the command line says about the log, for the workers. ``heritage``: the fleet that
    this one takes over from (-R).
    """

    def __init__(
        self,
        loaded: Loaded,
        count: int,
        open_log: OpenLog | None = None,
        *,
        quiet: bool = False,
        verbose: int = 0,
        heritage: Heritage | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise loaded.error("workers", f"this system has not what {count} workers need (memfd_create): set it to 1")
        self.loaded = loaded
        """What is in force."""
        self.count = count
        self.quiet = quiet
        self.verbose = verbose
        self._secrets = (
            Secrets(quic_keys=quic_keys(loaded.config), mock_key=os.urandom(_KEY_OCTETS))
            if heritage is None
            else heritage.inventory.secrets
        )
        self._ticketing = Ticketing(self._secrets.tickets)
        self.keep: Body = {}
        """What parts give their counterparts in each new worker, by the parts' names."""
        self.workers: dict[int, Bus] = {}
        """The connections to those that serve now."""
        self.parts: list[Part] = []
        self.posts: list[Post] = []
        self.stopping = Ending(self.posts, self._drain)
        self.operations = Face(loaded, open_log=open_log, adopt=self._adopt, stopping=lambda: self.stopping.begun)
        self.teller = Teller(lambda: self.loaded.config.cancel_wait_timeout)
        self.parts += [self.operations, self.teller]
        self._heritage = heritage
        self.changeover = Changeover(self, heritage)
        self.generation = self.changeover.generation
        self.hub = Hub(lambda: self.workers, self.changeover.beyond)
        if heritage is not None:
            self.operations.inherit(heritage.standing)
        self._board: Board | None = None
        self._sockets: Sockets | None = None
        self._acceptor: Acceptor | None = None
        self._caretaking: Caretaking | None = None
        self._watchdog: Watchdog | None = None
        self.closed = False
        """Whether its end has begun, at once."""

    @property
    def secrets(self) -> Secrets:
        """What workers, or the next supervisor, must have."""
        return replace(self._secrets, tickets=self._ticketing.seed)

    @property
    def board(self) -> Board:
        """What the workers say of themselves, once it has started."""
        assert self._board is not None
        return self._board

    @property
    def sockets(self) -> Sockets:
        """All of them, once it has started."""
        assert self._sockets is not None
        return self._sockets

    @property
    def acceptor(self) -> Acceptor:
        """What accepts connections, once it has started."""
        assert self._acceptor is not None
        return self._acceptor

    @property
    def caretaking(self) -> Caretaking:
        """What is at the sockets of workers that are gone, once it has started."""
        assert self._caretaking is not None
        return self._caretaking

    async def __aenter__(self) -> Supervisor:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when all workers serve. Raises :class:`ConfigError` where a front cannot open, or a worker not
        start."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        # What does not depend on who reads it is found here, before there are processes. What they find, they say.
        check_tuning(self.loaded)
        read_userlist(self.loaded.config.auth_file)
        TlsKeeper().reload(self.loaded)
        sockets = self._sockets = (
            await Sockets.open(self.loaded, self.count)
            if self._heritage is None
            else Sockets.take_over(self._heritage.inventory, self.count)
        )
        self._caretaking = Caretaking(
            [WorkerSockets(sockets.read_by(index), *ends) for index, ends in enumerate(sockets.forward)],
            self.secrets.quic_keys,
            generation=self.generation,
            serving=lambda: self.workers,
            ends=lambda: self.stopping.begun or self.changeover.hands_off,
            elders=self.changeover.elders(),
        )
        self.parts += [self._caretaking, self.changeover]
        self._board = Board.create(self.count)
        choice = Choice(
            lambda index: self.board.read(index, Field.SESSIONS), lambda index: self.board.read(index, Field.TAKEN)
        )
        self._acceptor = Acceptor(choice, dict(enumerate(self._sockets.hands)), self._login_timeout)
        self._watchdog = Watchdog(
            self._board,
            self._acceptor,
            self.posts.__getitem__,
            lambda: self.loaded.config.worker_hang_timeout,
        )
        self.posts += [Post(index, self) for index in range(self.count)]
        await self._begun()
        await self.changeover.serve()
        self.operations.start()
        self._ticketing.start()
        self.listen()
        self.changeover.offer()
        for name, addresses in (
            ("quic", self._sockets.udp_addresses),
            ("tcp", self._sockets.tcp_addresses),
            ("unix", self._sockets.unix_addresses),
        ):
            if addresses:
                log.info("listening on %s: %s", name, ", ".join(addresses))

    def listen(self) -> None:
        """Accepts from now on."""
        for sock in self.sockets.tcp:
            self.acceptor.listen("tcp", sock)
        if self.sockets.unix is not None:
            self.acceptor.listen("unix", self.sockets.unix)

    async def _begun(self) -> None:
        """Waits for all, or for the first that cannot."""
        starts = [asyncio.ensure_future(post.begun()) for post in self.posts]
        try:
            done, _ = await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
            for start in done:
                start.result()
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    def _login_timeout(self) -> float:
        return self.loaded.config.client_login_timeout or math.inf

    def _adopt(self, loaded: Loaded) -> None:
        self.loaded = loaded

    # -- workers -------------------------------------------------------------------------------------------------------

    def charter(self, index: int) -> Charter:
        sockets = self.sockets
        return Charter(
            index=index,
            count=self.count,
            generation=self.generation,
            ini=self.loaded.path,
            quiet=self.quiet,
            verbose=self.verbose,
            secrets=self.secrets,
            tcp=sockets.tcp_addresses,
            tcp_port=sockets.port,
            unix=sockets.unix_addresses,
            udp=tuple(sock.fileno() for sock in sockets.read_by(index)),
            elders=self.changeover.leaving,
            forward_in=sockets.forward[index][0].fileno(),
            forward_out={other: end.fileno() for other, (_, end) in enumerate(sockets.forward) if other != index},
            hand=sockets.hands[index].descriptor,
            board=self.board.descriptor,
            standing=self.operations.standing.as_body(),
            keep=self.keep,
        )

    def enters(self, index: int, bus: Bus) -> None:
        self.board.clear(index)
        self.hub.serve(index, bus)
        bus.on("shutdown", lambda body: self.stopping.ask(Patience(body["patience"])))
        for part in self.parts:
            part.enters(index, bus)

    def serves(self, index: int, bus: Bus, pid: int) -> None:
        restarts = self.posts[index].restarts
        self.workers[index] = bus
        self.board.write(index, Field.RESTARTS, restarts)
        self.board.write(index, Field.GENERATION, self.generation)
        self.board.write(index, Field.STARTED, int(time.time()))
        self.board.write(index, Field.PID, pid)
        self.acceptor.join(index)
        if self._watchdog is not None:
            self._watchdog.join(index)
        self.changeover.serves(index)
        log.log(logging.INFO if restarts else logging.DEBUG, "worker %d serves: pid %d", index, pid)

    def leaves(self, index: int) -> None:
        self.workers.pop(index, None)
        if self._watchdog is not None:
            self._watchdog.leave(index)
        self.board.write(index, Field.PID, 0)
        self.acceptor.leave(index)
        for part in self.parts:
            part.leaves(index)

    # -- stop ----------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """No new clients: TCP is refused, and the unix socket is there for the console."""
        if self._acceptor is not None:
            self._acceptor.stop("tcp")
        if self._sockets is not None:
            self._sockets.close_tcp()
            self._sockets.offer_name()
        self.changeover.hurry(self.stopping.patience)

    async def close(self) -> None:
        """Ends all workers at once, and leaves nothing behind."""
        if self.closed:
            return
        self.closed = True
        self._ticketing.close()
        if self._watchdog is not None:
            self._watchdog.close()
        self.stopping.ask(Patience.NONE)
        self.operations.close()
        await asyncio.gather(*(post.close() for post in self.posts))
        await self.changeover.close()
        await self.teller.close()
        if self._sockets is not None and self._sockets.file is not None:
            self._sockets.file.remove()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._caretaking is not None:
            await self._caretaking.close()
        if self._sockets is not None:
            self._sockets.close()
        if self._board is not None:
            self._board.close()
