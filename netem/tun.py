"""TUN devices inside the network namespaces of other processes, and what the clock of their shuttle needs.

Linux only. ``setns`` and ``prctl`` go through ctypes: Python has the former from 3.12 on, the latter never.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import struct
from collections.abc import Iterator

__all__ = ["has_tun", "inside", "open_tun", "precise_sleep", "realtime"]

_DEVICE = "/dev/net/tun"
_NUMBER = os.makedev(10, 200)
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is in the network namespace of the file ``namespace`` (``/proc/<pid>/ns/net``) meanwhile."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(namespace, os.O_RDONLY)
        try:
            _setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def has_tun() -> bool:
    """Whether this kernel has TUN devices. Containers often lack their file alone: it is made then."""
    with contextlib.suppress(OSError):
        if not os.path.exists(_DEVICE):
            os.makedirs(os.path.dirname(_DEVICE), exist_ok=True)
            os.mknod(_DEVICE, 0o600 | stat.S_IFCHR, _NUMBER)
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK))
        return True
    return False


def open_tun(name: str) -> int:
    """A new TUN device in the namespace of this thread -> its descriptor, not blocking. It lives as long as that."""
    fd = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    try:
        # No offloads are asked for: a loss would then hit segments of 64 kB, which no network has.
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except BaseException:
        os.close(fd)
        raise
    return fd


def precise_sleep() -> None:
    """Sleeps of this process end when they should, not up to 50 us later."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def realtime(priority: int) -> bool:
    """SCHED_FIFO for this process -> whether it was to be had. On a busy machine the link is late by 40 ms without."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        with contextlib.suppress(OSError):
            os.nice(-20)
        return False
    return True
