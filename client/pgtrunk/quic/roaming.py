"""A client's sockets, while its machine goes from one network to another.

A connected socket keeps the source address that it got when it was made, so it dies with its interface: sends fail, or
what they send goes nowhere. Then another one is made, for which the kernel chooses anew, and the gateway is asked by it
(Migrating.try_path). The first answer that comes decides: by the new socket, the connection goes on there, with another
connection id; by the old one, everything stays as it was. Until then the old socket is kept and used.

        what is seen                                      what is done
        a send fails as of ``MOVES``                      another socket, at once
        an answer is overdue (keepalive.py)               another socket, within ``SPREAD`` seconds
        it cannot be made or connected                    again after 0.25, 0.5, 1, 1 ... s
        nobody answers by it for ``PATIENCE`` seconds     dropped; again after 0.5, 1, 2, 4, 8, 8 ... s
        the old socket sends, and is answered             dropped
        nobody listens at the gateway's port              told to the connection, as ever; by whichever socket
        the kernel takes no datagram so large             told to the search for their size
        any other error                                   nothing: the datagram is lost, and QUIC sends it again
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from typing import TYPE_CHECKING, Any

from .client_socket import ClientSocket, SocketPath
from .ending import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import ConnectionDriver
    from .sockets import AddressInfo

__all__ = ["MOVES", "Roaming"]

logger = logging.getLogger("pgtrunk.quic")

PATIENCE = 1.5
"""Seconds; three times those of the old path's probe timeout where that is more. The new one may be slower."""

SPREAD = 1.0
"""Seconds, at random, that a silent path still has: a gateway that was busy for a moment may answer, and where it was
not, a thousand clients do not ask it in the same one."""

SETTLES = 1.0
"""Seconds after a move in which there is no other one."""

MOVES = frozenset(
    getattr(errno, name)
    for name in (
        "ENETUNREACH",  # no route: the interface that had it is gone
        "EHOSTUNREACH",  # no neighbour there, or a route that says so
        "ENETDOWN",  # the interface is down
        "EHOSTDOWN",  # macOS' word for a neighbour that does not answer
        "ENETRESET",
        "EADDRNOTAVAIL",  # the source address is gone, says macOS
        "EINVAL",  # the source address is gone, says Linux
        "ENODEV",  # so is the interface of a link-local address
        "ENXIO",
        "EPERM",  # a packet filter has dropped it, perhaps for its source address: VPNs switch that on and off
        "EACCES",  # a route that prohibits it
        "ENOTCONN",  # macOS has taken the socket's connection away, as it does in sleep
        "EDESTADDRREQ",
        "EPIPE",
        "ESHUTDOWN",
    )
    if hasattr(errno, name)
)
"""Errors of a send after which another socket may do better. Not among them: ENOBUFS and ENOMEM, which say that queues
are full, and pass."""

REFUSED = frozenset({errno.ECONNREFUSED, errno.ECONNRESET})
"""Nobody listens there; the second is Windows' word for it."""


class Roaming:
    """The socket of a client's connection, and another one that is tried. All of it ends with ``close``, after which
    ``on_closed(error)`` is called once; ``error`` is why, where nobody has asked for it."""

    def __init__(self, address: AddressInfo, *, loop: asyncio.AbstractEventLoop, buffer: int) -> None:
        self.on_refused: Callable[[OSError], object] = lambda error: None
        """Called when nobody listens there; while ``is_fixed``, with every error."""
        self.on_closed: Callable[[Exception | None], object] = lambda error: None
        self.is_fixed = True
        """Whether there is no other way than the first one yet."""
        self._address = address
        self._loop = loop
        self._buffer = buffer
        self._driver: ConnectionDriver | None = None
        self._current = ClientSocket(address, self)
        self._next: ClientSocket | None = None
        self._open: set[ClientSocket] = set()
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._not_before = 0.0
        self._failures = self._silences = 0
        self._is_looking = False
        self._is_closed = self._is_told = False
        self._error: Exception | None = None

    @property
    def path(self) -> SocketPath:
        """Where the connection begins."""
        return self._current.path

    async def open(self, driver: ConnectionDriver) -> None:
        """Open the first socket, by which ``driver`` is to connect. Raises OSError."""
        self._driver = driver
        await self._open_socket(self._current)
        driver.extra["sockname"] = self._current.sockname
        driver.quic.on_moved = self._moved
        driver.quic.proves_sizes = self._current.proves_sizes

    async def _open_socket(self, sock: ClientSocket) -> None:
        self._open.add(sock)
        try:
            await sock.open(self._buffer)
        except BaseException:
            self._open.discard(sock)
            raise

    def send(self, data: bytes, path: Any) -> None:
        """Send by the socket of ``path``; never waits and never raises."""
        path.socket.send(data)

    def close(self) -> None:
        """Close all sockets."""
        self._is_closed = True
        self._stop_looking()
        for sock in list(self._open):
            sock.close()
            if not sock.is_wired:
                self._open.discard(sock)
        self._check_closed()

    def _check_closed(self) -> None:
        if self._is_closed and not self._open and not self._is_told:
            self._is_told = True
            self.on_closed(self._error)

    # -- from the sockets

    def datagram_came(self, by: ClientSocket, data: bytes) -> None:
        """Take it in."""
        driver = self._driver
        assert driver is not None
        driver.receive(data, by.path)
        if self._is_looking and by is self._current and self._is_well:
            self._stop_looking()

    def socket_failed(self, by: ClientSocket, error: OSError, size: int) -> None:
        """See the table."""
        assert self._driver is not None
        if self._is_closed or by not in self._open:
            return
        if error.errno == errno.EMSGSIZE:
            if size:
                self._driver.quic.datagram_refused(size)
        elif self.is_fixed or error.errno in REFUSED:
            self.on_refused(error)
        elif error.errno in MOVES:
            if by is self._next:
                self._drop_next(failed=True)
            else:
                self._look()

    def socket_closed(self, by: ClientSocket, error: Exception | None) -> None:
        """One is gone."""
        self._open.discard(by)
        if by is self._current and not self._is_closed:
            self._error = error
            self.close()
        else:
            self._check_closed()

    @property
    def _is_well(self) -> bool:
        """Whether the socket in use does its work after all: both ways."""
        assert self._driver is not None
        heard_at, is_suspect = self._driver.quic.heard_at, self._driver.is_suspect
        return heard_at > self._since and not (is_suspect or self._current.fails)

    # -- from the connection

    def suspect(self) -> None:
        """An answer of the gateway is overdue."""
        if not self.is_fixed:
            self._look(SPREAD * random.random())

    def _moved(self) -> None:
        driver = self._driver
        assert driver is not None
        path = driver.quic.get_peer_address()
        assert isinstance(path, SocketPath)
        old, self._current, self._next = self._current, path.socket, None
        self._stop_looking()
        self._failures = self._silences = 0
        self._not_before = self._loop.time() + SETTLES
        if old is not self._current:
            old.close()
        driver.extra["sockname"] = self._current.sockname
        driver.quic.proves_sizes = self._current.proves_sizes
        logger.info("the QUIC connection with %s goes on from %s", show(path), show(self._current.sockname))

    # -- looking for another way

    def _look(self, wait: float = 0.0) -> None:
        if self._is_looking or self._is_closed:
            return
        self._is_looking = True
        now = self._since = self._loop.time()
        self._wait(max(self._not_before - now, wait))

    def _stop_looking(self) -> None:
        self._is_looking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        sock, self._next = self._next, None
        if sock is not None:
            if self._driver is not None:
                self._driver.quic.drop_path()
            sock.close()

    def _wait(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._try)

    def _try(self) -> None:
        self._timer = None
        self._opening = self._loop.create_task(self._open_next())

    async def _open_next(self) -> None:
        driver = self._driver
        assert driver is not None
        sock = ClientSocket(self._address, self)
        try:
            await self._open_socket(sock)
        except OSError:
            self._opening = None
            self._again(failed=True)
            return
        self._opening = None
        quic = driver.quic
        if driver.is_lost or not quic.try_path(sock.path, self._loop.time()):
            sock.close()
            self._again(failed=False)
            return
        self._next = sock
        patience = max(PATIENCE, 3 * quic._probe_timeout())
        self._timer = self._loop.call_later(patience, lambda: self._drop_next(failed=False))
        driver.touch()

    def _drop_next(self, *, failed: bool) -> None:
        self._stop_looking()
        self._is_looking = True
        self._again(failed=failed)

    def _again(self, *, failed: bool) -> None:
        """Try another one, in a while."""
        if self._is_closed:
            return
        if failed:
            wait = min(0.25 * 2**self._failures, 1.0)
            self._failures = min(self._failures + 1, 8)
        else:
            wait = min(0.5 * 2**self._silences, 8.0)
            self._silences = min(self._silences + 1, 8)
        self._not_before = self._loop.time() + wait
        self._wait(wait)
