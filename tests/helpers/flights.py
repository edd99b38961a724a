"""Counting what a gateway sends to Postgres: each write to a backend's transport is a flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from helpers.gateways import LocalGateway

__all__ = ["CountedTransport", "counted"]


class CountedTransport:
    """Stands before a backend's transport and counts what is written: each write is a flight to Postgres."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._transport.write(data)


def counted(gateway: LocalGateway) -> CountedTransport:
    """The flights to the only backend of ``gateway``, from now on."""
    (backend,) = (backend for pool in gateway.gateway.pools for backend in pool.backends.values())
    transport: Any = CountedTransport(backend.transport)
    backend.transport = transport
    return transport  # type: ignore[no-any-return]
