"""The addresses of gateways, as people type them. Pure: resolves nothing and opens nothing."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFAULT_PORT", "Address", "parse_gateways"]

DEFAULT_PORT = 6432
"""PgBouncer's port, which the gateway's fronts share."""


@dataclass(frozen=True, slots=True)
class Address:
    """A gateway's host, a name or an IP address without brackets, and its UDP port."""

    host: str
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or a bare IPv6 address; raises `UsageError`."""
        host, port = _split(text)
        if not host or any(c.isspace() or c in "/@,[]" for c in host):
            raise UsageError(f"{text!r} is no gateway address: host:port is expected, as in gw.example.net:6432")
        return cls(host, DEFAULT_PORT if port is None else _port(port, text))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_gateways(gateway: str | Sequence[str]) -> tuple[Address, ...]:
    """Reads one gateway or several: a list with commas, as libpq's of hosts, or a sequence. Each counts once.

    Raises `UsageError`.
    """
    texts = gateway.split(",") if isinstance(gateway, str) else list(gateway)
    if not texts:
        raise UsageError("no gateway is given: host:port is expected, or several of them, as in gw1:6432,gw2:6432")
    return tuple(dict.fromkeys(Address.parse(text.strip()) for text in texts))


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        _require_v6(host, text)
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"{text!r} is no gateway address: [address]:port is expected, as in [2001:db8::1]:6432")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        _require_v6(text, text)
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _require_v6(host: str, text: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise UsageError(f"{text!r} is no gateway address: {host!r} is no IPv6 address") from None


def _port(port: str, text: str) -> int:
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"{text!r} is no gateway address: the port is a number from 1 to 65535")
    return int(port)
