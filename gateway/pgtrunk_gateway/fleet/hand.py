"""The channel on which the supervisor hands an accepted connection to a worker (SCM_RIGHTS, unix(7)).

One packet is one connection: the name of its front, and the descriptor beside it. The supervisor keeps both ends, so
that what a worker had not taken yet when it died can be taken back.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
from typing import Final, NamedTuple

__all__ = ["Hand", "Handed", "Lost", "take"]

log = logging.getLogger(__name__)

_NAME: Final = 16
"""Octets of the longest name of a front, and more."""
_DESCRIPTOR: Final = 4
"""Octets of a descriptor: a C int."""
_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})
"""Errors that mean: not now. The last is a limit on descriptors that nobody has taken yet, as many as may be open."""


class Lost(Exception):
    """A connection has arrived, but not its descriptor: this process may not open any more, and so it was closed."""


class Handed(NamedTuple):
    """A connection on its way."""

    front: str
    """Name of the front that it came by."""
    sock: socket.socket


class Hand:
    """The supervisor's end of one worker's channel, and the worker's end, which the worker inherits."""

    def __init__(self) -> None:
        self._giving, self._taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._giving.setblocking(False)
        self._taking.setblocking(False)

    @property
    def descriptor(self) -> int:
        """What the worker inherits."""
        return self._taking.fileno()

    def give(self, handed: Handed) -> bool:
        """Passes it on -> whether there was room. Then it is the worker's, and closed here."""
        try:
            socket.send_fds(self._giving, [handed.front.encode()], [handed.sock.fileno()])
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        handed.sock.close()
        return True

    def take_back(self) -> tuple[list[Handed], int]:
        """All that the worker has not taken yet, and how many others were lost."""
        left: list[Handed] = []
        lost = 0
        while True:
            try:
                handed = take(self._taking)
            except Lost as error:
                log.warning("%s", error)
                lost += 1
                continue
            if handed is None:
                return left, lost
            left.append(handed)

    def close(self) -> None:
        """What is still on its way is closed with it."""
        self._giving.close()
        self._taking.close()


def take(channel: socket.socket) -> Handed | None:
    """The next one, or None where none waits. Raises :class:`Lost` instead of one that is lost, and EOFError where the
    supervisor has gone."""
    try:
        # Not recv_fds, which lets no flags pass: children would inherit what it gets.
        name, ancillary, _, _ = channel.recvmsg(_NAME, socket.CMSG_SPACE(_DESCRIPTOR), socket.MSG_CMSG_CLOEXEC)
    except (BlockingIOError, InterruptedError):
        return None
    if not name:
        raise EOFError
    for _, _, data in ancillary:
        if len(data) >= _DESCRIPTOR:
            return Handed(name.decode(), socket.socket(fileno=int.from_bytes(data[:_DESCRIPTOR], sys.byteorder)))
    # The kernel drops it where this process may not open any more.
    raise Lost("a connection was lost: too many open files (ulimit -n)")
