"""What a driver is owed: whether its session was at rest when it was lost. Pure.

The gateway owes a ReadyForQuery for the login and for each Query, Sync and FunctionCall; what is between two Syncs is
one request. A session is at rest when nothing is owed and nothing has been said since; what may be at stake later is
whatever was said after that. Only headers are looked at, and in doubt a session is never at rest again:

- a Sync in the middle of a COPY that a request of Execute began is not answered; the one behind CopyDone is;
- after an error the server skips what comes before the next Sync, a Query among it, and that is then owed for ever.

PostgreSQL documentation, "Extended Query" and "COPY Operations" in "Message Flow".
"""

from __future__ import annotations

from typing import Final

from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.frontend import (
    BIND,
    CLOSE,
    DESCRIBE,
    EXECUTE,
    FLUSH,
    FUNCTION_CALL,
    KINDS,
    PARSE,
    QUERY,
    SYNC,
)

__all__ = ["Owed"]

_ANSWERED: Final = frozenset({QUERY, SYNC, FUNCTION_CALL})
_UNSYNCED: Final = frozenset({PARSE, BIND, DESCRIBE, EXECUTE, CLOSE, FLUSH})
_IDLE: Final = ord("I")


class Owed:
    """Counts for one session, from its StartupMessage on."""

    __slots__ = (
        "_carry",
        "_count",
        "_is_in_doubt",
        "_is_open",
        "_last",
        "_logs_in",
        "_since",
        "_skip",
        "_status",
        "written",
    )

    def __init__(self) -> None:
        self.written = 0
        """Octets that the driver has said."""
        self._since = 0  # of them, up to where all was answered
        self._skip = 0  # octets that are left of the message in which the last chunk ended
        self._carry = b""  # the beginning of a header
        self._count = 1  # ReadyForQuery that are to come; the first ends the login
        self._last = QUERY  # what the latest of them is for
        self._is_open = False  # something was said since, and not synced
        self._is_in_doubt = False
        self._logs_in = True
        self._status = _IDLE  # of the latest ReadyForQuery

    def begin(self, length: int) -> None:
        """``length`` octets of StartupMessage come first."""
        self._skip = length

    def asked(self, data: bytes) -> None:
        """Takes what the driver says next. On the hot path, and plain for it."""
        self.written += len(data)
        at = self._skip
        if self._carry:
            data, self._carry = self._carry + data, b""
        size = len(data)
        while at + HEADER_SIZE <= size:
            kind, length = HEAD(data, at)
            if kind in _ANSWERED:
                self._count += 1
                self._last = kind
                self._is_open = False
            elif kind in _UNSYNCED:
                self._is_open = True
            if length < 4 or kind not in KINDS:
                # No Postgres: from here on nobody knows where a message ends.
                self._is_in_doubt = True
                return
            at += length + 1
        if at < size:
            self._skip, self._carry = 0, data[at:]
        else:
            self._skip = at - size
        if self._logs_in and self._count == 1 and not self._is_open:
            # StartupMessage and passwords: they ask for nothing that could take effect.
            self._since = self.written - len(self._carry)

    def ready(self, status: int) -> None:
        """A ReadyForQuery has come."""
        self._logs_in = False
        self._count -= 1
        self._status = status
        if self._count == 0 and not self._is_open:
            self._since = self.written - len(self._carry)
        elif self._count < 0:
            self._is_in_doubt = True

    def copies(self) -> None:
        """A CopyInResponse or CopyBothResponse has come."""
        if self._count == 1 and self._last == SYNC:
            self._count, self._is_open = 0, True
        elif self._count > 1:
            self._is_in_doubt = True

    def has_left(self, departed: int) -> bool:
        """Whether anything that was not answered may have reached the gateway, if the first ``departed`` octets may."""
        return self._is_in_doubt or departed > self._since

    @property
    def in_transaction(self) -> bool:
        """Whether the latest ReadyForQuery said so."""
        return self._status != _IDLE
