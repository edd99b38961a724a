"""Whether what an asyncpg session was asked for had left when the session was lost.

asyncpg tells whoever waits for an answer that the session is gone, with what its transport said as the cause. It starts
one operation at a time, and asks its loop for a future as it does; a request of several messages, such as a COPY, asks
for one. So the octets of an operation are those written since; if none of them has ever been in a packet, nothing of it
can have taken effect.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from pgtrunk.errors import SessionLost

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

__all__ = ["Outbox", "Undertaking", "Witness"]


class Outbox(Protocol):
    """What a transport tells of the octets written to it: ``get_extra_info("outbox")``, None where it cannot tell."""

    @property
    def written(self) -> int:
        """All of them."""
        ...

    @property
    def departed(self) -> int:
        """Those of them that may have reached the other end."""
        ...


class Undertaking:
    """The latest operation of a session: since which octet."""

    __slots__ = ("_outbox", "_since", "_waiter")

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox
        self._since: int | None = None  # None: none yet, the session logs in
        self._waiter: weakref.ref[asyncio.Future[Any]] | None = None

    def begin(self, waiter: weakref.ref[asyncio.Future[Any]]) -> None:
        """A future is asked for. While the last one is not done it belongs to the same operation, which is then being
        cancelled."""
        if self._waiter is not None and (last := self._waiter()) is not None and not last.done():
            return
        self._waiter = waiter
        self._since = 0 if self._outbox is None else self._outbox.written

    @property
    def has_left(self) -> bool:
        """Whether anything of it may have reached the gateway. A login is nothing that could take effect."""
        return self._since is not None and (self._outbox is None or self._outbox.departed > self._since)


class Witness(asyncio.BaseProtocol):
    """Stands before asyncpg's protocol, and has a word in what that is told of the end; all else goes by."""

    def __init__(self, protocol: Any, undertaking: Undertaking) -> None:
        self._protocol = protocol
        self._undertaking = undertaking
        # The transport looks it up once: nothing is between it and asyncpg for what arrives.
        self.data_received: Callable[[bytes], None] = protocol.data_received
        self.eof_received = protocol.eof_received
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def connection_lost(self, exc: BaseException | None) -> None:
        self._protocol.connection_lost(self._judged(exc))

    def _judged(self, exc: BaseException | None) -> BaseException | None:
        if self._undertaking.has_left or (exc is not None and not isinstance(exc, SessionLost)):
            return exc
        if exc is None and self._protocol.is_closed():
            return None  # asyncpg has closed it
        words = "the gateway ended the session before the query was sent" if exc is None else str(exc)
        lost = SessionLost(
            words,
            sent=False,
            in_transaction=self._protocol.is_in_transaction(),
            forgotten=exc is not None and exc.forgotten,
        )
        lost.__cause__ = None if exc is None else exc.__cause__
        return lost
