"""What needs no backend: what Postgres skips after an error in a batch, up to Sync, and what means nothing. Pure."""

from __future__ import annotations

from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.frontend import COPY_DATA, COPY_DONE, COPY_FAIL, FLUSH, FUNCTION_CALL, QUERY, SYNC, TERMINATE

__all__ = ["skip_batch", "skip_idle", "skip_refused"]

_IDLE = frozenset((COPY_DATA, COPY_DONE, COPY_FAIL, FLUSH))


def skip_batch(data: bytes) -> tuple[int, bytes]:
    """Skips whole messages up to a Sync or a Terminate -> its type octet (0: neither came) and what follows it."""
    pos, size = 0, len(data)
    while size - pos >= HEADER_SIZE:
        kind, length = HEAD(data, pos)
        pos += length + 1
        if kind in (SYNC, TERMINATE):
            return kind, data[pos:]
    return 0, b""


def skip_idle(data: bytes) -> bytes:
    """Skips the messages at the beginning that mean nothing outside a batch: Flush, and what is late for a COPY."""
    pos, size = 0, len(data)
    while pos < size:
        kind, length = HEAD(data, pos)
        if kind not in _IDLE:
            return data[pos:]
        pos += length + 1
    return b""


def skip_refused(data: bytes) -> tuple[int, bytes]:
    """As :func:`skip_batch`, for a request that was refused whole: a simple query ends itself, no more is skipped."""
    kind, length = HEAD(data, 0)
    if kind in (QUERY, FUNCTION_CALL):
        return SYNC, data[length + 1 :]
    return skip_batch(data)
