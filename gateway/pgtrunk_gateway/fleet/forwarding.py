"""Datagrams on their way from one worker to another, in frames (:mod:`pgtrunk_gateway.quic.forwarding`), over unix
datagram sockets: a pair for each worker, of which it has the reading end and all others the writing one.

What has no room is lost and counted, as on a network that is congested: QUIC sends it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ElderOutlets", "Inlet", "Outlets"]

_BURST: Final = 32
"""Frames that are read before the loop looks at anything else."""
_LONGEST: Final = 1 << 17
"""Octets; of a frame, too."""
_ROOM: Final = 4 << 20
"""Octets asked of the kernel for frames on their way to one worker. Between the ends of a pair nothing else bounds
them: the limit on a queue's length (net.unix.max_dgram_qlen) is for who is not at its other end."""
_Worker = TypeVar("_Worker")
"""What names a worker."""


class Inlet:
    """This worker's reading end, which it takes over; ``take`` is given what comes."""

    def __init__(self, sock: socket.socket, take: Callable[[bytes], object]) -> None:
        self.received = 0
        self._sock = sock
        self._take = take
        self._buffer = bytearray(_LONGEST)
        self._view = memoryview(self._buffer)
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        for _ in range(_BURST):
            try:
                size = self._sock.recv_into(self._buffer)
            except OSError:
                return
            if size:
                self.received += 1
                self._take(bytes(self._view[:size]))

    def close(self) -> None:
        """Reads nothing more, from now on."""
        self._loop.remove_reader(self._sock)
        self._sock.close()


class _Outlets(Generic[_Worker]):
    """Writing ends, which it takes over, by what names the workers."""

    def __init__(self, socks: Mapping[_Worker, socket.socket]) -> None:
        self.sent = 0
        self.dropped = 0
        """Frames that there was no room for."""
        self._socks = dict(socks)
        for sock in self._socks.values():
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)

    def close(self) -> None:
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()


class Outlets(_Outlets[int]):
    """The writing ends to the other workers, by their numbers."""

    def send(self, worker: int, frame: bytes) -> None:
        """Sends a frame to a worker, or loses it; never waits and never raises."""
        try:
            self._socks[worker].send(frame)
        except (OSError, KeyError):
            self.dropped += 1
        else:
            self.sent += 1


class ElderOutlets(_Outlets[tuple[int, int]]):
    """The writing ends to the workers of fleets that are leaving, by generation and number."""

    def send(self, generation: int, worker: int, frame: bytes) -> bool:
        """Sends a frame, or loses it -> whether there is such a worker still; never waits and never raises."""
        sock = self._socks.get((generation, worker))
        if sock is None:
            return False
        try:
            sock.send(frame)
        except (BlockingIOError, InterruptedError):
            self.dropped += 1
        except OSError:
            # Nobody has the other end any more: the worker has ended.
            del self._socks[generation, worker]
            sock.close()
            return False
        else:
            self.sent += 1
        return True
