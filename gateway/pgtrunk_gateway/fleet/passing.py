"""Descriptors on their way from one supervisor to the next, over a unix stream socket, before a Bus begins to use it.

First their number, in four octets, big endian; then a message of one octet for each :data:`_AT_ONCE` of them, which
carries them (SCM_RIGHTS, unix(7)).
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["peer", "receive", "send"]

_HEAD: Final = struct.Struct("!I")
_AT_ONCE: Final = 200
"""The kernel takes 253 of them in one message."""
_MOST: Final = 100_000
_DESCRIPTOR: Final = 4
_CREDENTIALS: Final = struct.Struct("=iII")
"""``struct ucred``: pid, uid, gid."""


def peer(sock: socket.socket) -> tuple[int, int]:
    """The process at the other end: its pid, and the user that it was when it connected."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def send(sock: socket.socket, descriptors: Sequence[int]) -> None:
    """Sends copies of them. What is sent is so little that a socket which is new has room for all of it; raises OSError
    where it has not, or the other end has gone."""
    sock.sendall(_HEAD.pack(len(descriptors)))
    for start in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(sock, [b"+"], descriptors[start : start + _AT_ONCE])


def receive(sock: socket.socket, seconds: float) -> list[int]:
    """What the other end sends, which is the caller's to close. Blocks, for ``seconds`` at most with each message.
    Raises OSError, and EOFError where the other end hangs up."""
    sock.settimeout(seconds)
    found: list[int] = []
    try:
        head = sock.recv(_HEAD.size, socket.MSG_WAITALL)
        if len(head) < _HEAD.size:
            raise EOFError
        count = min(_HEAD.unpack(head)[0], _MOST)
        while len(found) < count:
            room = socket.CMSG_SPACE(_AT_ONCE * _DESCRIPTOR)
            data, ancillary, flags, _ = sock.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
            if not data:
                raise EOFError
            for _, _, rights in ancillary:
                whole = len(rights) - len(rights) % _DESCRIPTOR
                found += (
                    int.from_bytes(rights[at : at + _DESCRIPTOR], sys.byteorder) for at in range(0, whole, _DESCRIPTOR)
                )
            if flags & socket.MSG_CTRUNC:
                raise OSError("not all descriptors arrived: too many open files (ulimit -n)")
    except BaseException:
        for descriptor in found:
            os.close(descriptor)
        raise
    sock.setblocking(False)
    return found
