"""SUSPEND: nothing more is read, neither of clients nor of backends, once what was read has been passed on.

PgBouncer has it for its online restart, and for a moment in which nothing moves. Clients come first: what they have
sent is passed on to their backends, then the backends are not read any more either. Who has not taken all that is
meant for it after suspend_timeout is closed. Sessions that log in are not read either: they go on at RESUME, unless
client_login_timeout was quicker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.pools import Pools
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.lifecycle import Lifecycle

__all__ = ["Suspension"]

_LOOK = 0.02
"""Seconds between two looks at the buffers: nobody says when a buffer has become empty."""


class Suspension:
    """Whether, and how far, a gateway is suspended."""

    def __init__(self, context: Context, pools: Pools) -> None:
        self._context = context
        self._pools = pools

    @property
    def active(self) -> bool:
        return self._context.suspended

    async def begin(self, timeout: float) -> None:
        """Returns when all buffers are empty, or after ``timeout`` seconds (0: no limit) have been made so."""
        self.start()
        if not await self.settled(timeout):
            self.force()

    def start(self) -> None:
        """Nobody is read any more."""
        self._context.suspended = True
        for session in self._context.sessions:
            session.suspend()
        for backend in self._free():
            backend.pause_reading()

    async def settled(self, timeout: float) -> bool:
        """Waits until all buffers are empty, at most ``timeout`` seconds (0: no limit) -> whether they are."""
        try:
            async with asyncio.timeout(timeout or None):
                while any(self._full()):  # noqa: ASYNC110 - a transport has no event for an empty buffer
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            return False
        return True

    def force(self) -> None:
        """Closes those who have not taken what is meant for them."""
        for session in list(self._full()):
            session.kill(ShuttingDown("suspend_timeout"))
            # It would not take that either.
            session.transport.abort()

    def end(self) -> None:
        """Everybody is read again."""
        self._context.suspended = False
        for session in list(self._context.sessions):
            session.end_suspension()
        for backend in self._free():
            backend.resume_reading()

    def _free(self) -> Iterator[Backend]:
        for pool in self._pools:
            yield from (backend for backend in pool.backends.values() if backend.holder is None)

    def _full(self) -> Iterator[Lifecycle]:
        for session in self._context.sessions:
            waiting = session.transport.get_write_buffer_size()
            if session.backend is not None:
                waiting += session.backend.transport.get_write_buffer_size()
            if waiting:
                yield session
