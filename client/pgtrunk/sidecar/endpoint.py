"""Where a sidecar listens, as people type it. Pure: opens nothing, resolves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pgtrunk.errors import UsageError

__all__ = ["DEFAULT_PORT", "Endpoint", "TcpEndpoint", "UnixEndpoint", "parse_endpoint"]

DEFAULT_PORT = 5432
"""The port in a socket's name that libpq looks for unless it is told another."""


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A socket in a folder, by the name that libpq gives it: ``.s.PGSQL.<port>``."""

    directory: str
    port: int = DEFAULT_PORT

    @property
    def path(self) -> str:
        return f"{self.directory.rstrip('/')}/.s.PGSQL.{self.port}"

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A host, a name or an IP address without brackets, and a port; 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Endpoint: TypeAlias = UnixEndpoint | TcpEndpoint


def parse_endpoint(text: str) -> Endpoint:
    """Reads ``/folder``, ``/folder:port``, ``host:port`` or ``[v6]:port``; raises `UsageError`.

    What has a slash in it is a folder, so ``./sockets`` is one and ``sockets:5432`` is a host.
    """
    place, colon, port = text.rpartition(":")
    if "/" in text:
        if colon and port.isascii() and port.isdigit():
            return UnixEndpoint(place, _port(port, text, least=1))
        return UnixEndpoint(text)
    host = place.removeprefix("[").removesuffix("]") if place.startswith("[") else place
    if not host or any(c.isspace() or c in "@,[]" for c in host) or (":" in host and host == place):
        raise UsageError(
            f"{text!r} is no place to listen at: a folder for a unix socket is expected, as in /run/pgtrunk, "
            "or host:port, as in 127.0.0.1:5432"
        )
    return TcpEndpoint(host, _port(port, text, least=0))


def _port(port: str, text: str, *, least: int) -> int:
    if not (port.isascii() and port.isdigit() and least <= int(port) <= 65535):
        raise UsageError(f"{text!r} is no place to listen at: the port is a number from {least} to 65535")
    return int(port)
