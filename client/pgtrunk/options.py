"""What a `StreamManager` may be told: each error names the option, its value, and what is needed instead."""

from __future__ import annotations

from math import isfinite
from os import PathLike, fspath
from typing import TYPE_CHECKING

from pgtrunk.errors import UsageError
from pgtrunk.rules import Rules

if TYPE_CHECKING:
    from pgtrunk.quic.qlog import QlogFolder
    from pgtrunk.quic.ticket_store import TicketStore

__all__ = [
    "MAX_IDLE",
    "pool_rules",
    "qlog_folder",
    "require_choice",
    "require_positive_int",
    "require_seconds",
    "ticket_store",
]

MAX_IDLE = 5.0
"""Seconds that a connection without streams may be kept: half of QUIC's idle timeout, since nothing keeps it alive."""


def pool_rules(
    *,
    connections: int,
    streams_per_connection: int,
    min_connections: int,
    acquire_timeout: float,
    max_idle: float,
    max_lifetime: float | None,
) -> Rules:
    """Checks the options of a pool, and returns them as rules."""
    require_positive_int(connections=connections, streams_per_connection=streams_per_connection)
    _require_count("min_connections", min_connections, most=connections, why=f"connections={connections}")
    require_seconds(acquire_timeout=acquire_timeout, max_idle=max_idle)
    if max_idle > MAX_IDLE:
        raise UsageError(
            f"max_idle={max_idle:g}: at most {MAX_IDLE:g} s, half of QUIC's idle timeout, since nothing keeps a "
            "connection without streams alive; min_connections keeps some open for good"
        )
    if max_lifetime is not None:
        require_seconds(max_lifetime=max_lifetime)
    return Rules(
        connections=connections,
        streams_per_connection=streams_per_connection,
        min_connections=min_connections,
        patience=acquire_timeout,
        max_idle=max_idle,
        max_lifetime=max_lifetime,
    )


def qlog_folder(qlog_dir: str | PathLike[str] | None) -> QlogFolder | None:
    """Returns where logs of packets are written. Raises `UsageError` where that cannot be."""
    if qlog_dir is None:
        return None
    from pgtrunk.quic.qlog import QlogFolder

    return QlogFolder(fspath(qlog_dir))


def ticket_store(tickets: object) -> TicketStore | None:
    """Returns where session tickets are kept. Raises `UsageError` for a file that is none for secrets."""
    # Imported here, not above: `import pgtrunk` alone stays quick.
    from pgtrunk.quic.ticket_store import FileTickets, MemoryTickets

    if tickets is None:
        return None
    path = fspath(tickets) if isinstance(tickets, (str, PathLike)) else tickets
    if not isinstance(path, str) or not path:
        raise UsageError(f'tickets={tickets!r}: "memory", the path of a file, or None is needed')
    return MemoryTickets() if path == "memory" else FileTickets(path)


def require_positive_int(**settings: object) -> None:
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name}={value!r}: a whole number of at least 1 is needed")


def require_seconds(**settings: object) -> None:
    for name, value in settings.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not isfinite(value) or value <= 0:
            raise UsageError(f"{name}={value!r}: seconds are needed, more than 0 and not for ever")


def require_choice(*choices: str, **settings: object) -> None:
    for name, value in settings.items():
        if value not in choices:
            raise UsageError(f"{name}={value!r}: " + " or ".join(f'"{choice}"' for choice in choices) + " is needed")


def _require_count(name: str, value: object, *, most: int, why: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UsageError(f"{name}={value!r}: a whole number from 0 to {most} is needed ({why})")
