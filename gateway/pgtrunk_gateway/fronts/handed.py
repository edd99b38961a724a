"""Sessions over connections that somebody else has accepted: the supervisor, who listens for all workers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pgtrunk_gateway.fleet.hand import Lost, take

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fronts.front import Front, SessionFactory

__all__ = ["HandedFront", "Receiver"]

log = logging.getLogger(__name__)

_BURST = 16
"""Connections that are taken before the loop looks at anything else."""


class HandedFront:
    """TCP's or the unix socket's, in a worker. Listening, and all about the sockets' names, is the supervisor's."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        port: int,
        session: SessionFactory,
        tune: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """``tune`` sets the options of a connection, which are those of the moment at which it comes."""
        self.name = name
        self.addresses = list(addresses)
        self.port = port
        """TCP's, which is also in the unix socket's name."""
        self._session = session
        self._tune = tune
        self._over = False

    async def adopt(self, sock: socket.socket) -> None:
        """Makes a session of a connection; returns when it has begun."""
        if self._over:
            sock.close()
            return
        try:
            sock.setblocking(False)
            if self._tune is not None:
                self._tune(sock)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._session(self.name), sock)
        except OSError as error:
            # It has hung up meanwhile.
            log.debug("%s: a connection was lost before its session began: %s", self.name, error)
            sock.close()

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        return lambda: None

    def drain(self) -> None:
        """The supervisor sees to it; what comes all the same is for the console, or told that it came too late."""

    def stop_accepting(self) -> None:
        self._over = True

    async def close(self) -> None:
        self.stop_accepting()


class Receiver:
    """Takes connections from the supervisor's channel, for the fronts by whose names they come. To be closed.

    ``taken`` is called for each, when its session is among the others, or there is none; for one that is lost, too.
    """

    def __init__(self, channel: socket.socket, fronts: Sequence[Front], taken: Callable[[], None]) -> None:
        self._channel = channel
        self._fronts = {front.name: front for front in fronts if isinstance(front, HandedFront)}
        self._taken = taken
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), self._receive)

    def _receive(self) -> None:
        for _ in range(_BURST):
            try:
                handed = take(self._channel)
            except Lost as error:
                log.warning("%s", error)
                # Or it would count as on its way for ever.
                self._taken()
                continue
            except (EOFError, ConnectionError):
                # The supervisor has gone; the bus says so too.
                self._loop.remove_reader(self._channel.fileno())
                return
            if handed is None:
                return
            task = self._loop.create_task(self._adopt(handed.front, handed.sock), name=f"adopt {handed.front}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _adopt(self, name: str, sock: socket.socket) -> None:
        try:
            front = self._fronts.get(name)
            if front is None:
                sock.close()
            else:
                await front.adopt(sock)
        finally:
            self._taken()

    async def close(self) -> None:
        """Takes no more. What nobody has taken is the supervisor's again."""
        self._loop.remove_reader(self._channel.fileno())
        await asyncio.gather(*self._tasks)
        self._channel.close()
