"""Tells a service manager how the gateway is: systemd's sd_notify protocol, for ``Type=notify`` and ``notify-reload``.

A datagram to the unix socket that the environment names in NOTIFY_SOCKET. Without one, or where it cannot be reached,
nothing happens: no gateway fails because nobody watches it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping

__all__ = ["Notifier"]


class Notifier:
    """One manager, or none."""

    def __init__(self, environment: Mapping[str, str], clock: Callable[[], int] = time.monotonic_ns) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._clock = clock
        self._pid = 0
        self._tells_pid = False

    def ready(self) -> None:
        """It serves: after its start, or after a reload. With the pid: after an online restart it is another process
        than the manager has started."""
        self._send(f"READY=1\nMAINPID={self._pid}" if self._tells_pid else "READY=1")

    def took_over(self, pid: int) -> None:
        """This process is the service now, instead of the one that the manager knows."""
        self._pid, self._tells_pid = pid, True

    def moved(self, pid: int) -> None:
        """Another process is the service from now on. Managers believe that only of the one they know, which is this
        one; nothing that it says later concerns them."""
        self._send(f"MAINPID={pid}")
        self._address = ""

    def reloading(self) -> None:
        """It has begun to read its configuration again."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={self._clock() // 1000}")

    def stopping(self) -> None:
        """Its end has begun."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            # A manager that does not read is not waited for.
            sock.setblocking(False)
            sock.sendto(state.encode(), self._address)
