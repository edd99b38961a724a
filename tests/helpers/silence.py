"""A UDP port at which datagrams arrive, and nobody answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["Silence", "refusing_port", "silence"]


class Silence:
    """The port, and what has come to it."""

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.setblocking(False)
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    def callers(self) -> int:
        """How many have called since this was asked last, each by its own port."""
        callers = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                callers.add(self._socket.recvfrom(2048)[1])
        return len(callers)

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def silence(host: str = "127.0.0.1") -> Iterator[Silence]:
    made = Silence(host)
    try:
        yield made
    finally:
        made.close()


def refusing_port(host: str = "127.0.0.1") -> int:
    """A port at which nobody listens."""
    with silence(host) as each:
        return each.port
