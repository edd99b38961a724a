"""What needs no backend: what Postgres skips after an error in a batch, up to Sync, and what means nothing. Pure."""

from __future__ import annotations

from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.frontend import COPY_DATA, COPY_DONE, COPY_FAIL, FLUSH, FUNCTION_CALL, QUERY, SYNC, TERMINATE

__all__ = ["asks_for_answers", "batch_end", "skip_batch", "skip_idle", "skip_refused"]

_ENDS = frozenset((SYNC, TERMINATE))
_IDLE = frozenset((COPY_DATA, COPY_DONE, COPY_FAIL, FLUSH))
_ASKING = _ENDS | _IDLE | {FUNCTION_CALL, QUERY}


def batch_end(data: bytes) -> int:
    """Where in ``data`` the first Sync or Terminate is; its size where none is."""
    pos, size = 0, len(data)
    while size - pos >= HEADER_SIZE:
        kind, length = HEAD(data, pos)
        if kind in _ENDS:
            return pos
        pos += length + 1
    return size


def asks_for_answers(data: bytes, pos: int) -> bool:
    """Whether one of the messages from ``pos`` on makes the server send its answers, or is not all there."""
    size = len(data)
    while size - pos >= HEADER_SIZE:
        kind, length = HEAD(data, pos)
        if kind in _ASKING:
            return True
        pos += length + 1
    return pos != size


def skip_batch(data: bytes) -> tuple[int, bytes]:
    """Skips whole messages up to a Sync or a Terminate -> its type octet (0: neither came) and what follows it."""
    end = batch_end(data)
    if end == len(data):
        return 0, b""
    kind, length = HEAD(data, end)
    return kind, data[end + length + 1 :]


def skip_idle(data: bytes) -> bytes:
    """Skips the messages at the beginning that mean nothing outside a batch: Flush, and what is late for a COPY."""
    pos, size = 0, len(data)
    while pos < size:
        kind, length = HEAD(data, pos)
        if kind not in _IDLE or (kind == FLUSH and length > 4):
            return data[pos:]
        pos += length + 1
    return b""


def skip_refused(data: bytes) -> tuple[int, bytes]:
    """As :func:`skip_batch`, for a request that was refused whole: a simple query ends itself, no more is skipped."""
    kind, length = HEAD(data, 0)
    if kind in (QUERY, FUNCTION_CALL):
        return SYNC, data[length + 1 :]
    return skip_batch(data)
