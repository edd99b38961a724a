"""Who of a session is read, and who is not: its client, its backend, both or neither.

Between :class:`~pgtrunk_gateway.relay.visible.Visible` and :class:`~pgtrunk_gateway.relay.returning.Returning`. A side
that does not read stops the other, so that nothing collects here; where no backend is there to be stopped, the client
itself is not read, since what it asks is answered at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.relay.visible import Visible

if TYPE_CHECKING:
    import asyncio

    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.login import SessionLogin

__all__ = ["FULL", "HELD", "SUSPENDED", "UNREAD", "Pausing"]

HELD: Final = 1
"""Reading is paused since enough is held."""
FULL: Final = 2
"""Reading is paused since the backend's socket is full."""
SUSPENDED: Final = 4
"""Reading is paused since the gateway is suspended."""
UNREAD: Final = 8
"""Reading is paused since the client does not read what it is told without a backend."""


class Pausing(Visible):
    """The pauses of a session."""

    context: Context
    transport: asyncio.Transport
    login: SessionLogin | None

    def __init__(self) -> None:
        super().__init__()
        self._paused = 0
        """Why the client is not read: any of the above."""
        self._client_full = False
        """The client does not read."""

    def _pause(self, why: int) -> None:
        if not self._paused:
            self.transport.pause_reading()
        self._paused |= why

    def _resume(self, why: int) -> None:
        if self._paused & why:
            self._paused &= ~why
            if not self._paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def backend_full(self) -> None:
        self._pause(FULL)

    def backend_drained(self) -> None:
        self._resume(FULL)

    def pause_writing(self) -> None:
        """The client does not read: nor does the backend send."""
        self._client_full = True
        if self.backend is not None:
            self.backend.pause_reading()
        elif self.login is not None:
            self.login.pause_writing()

    def resume_writing(self) -> None:
        self._client_full = False
        self._resume(UNREAD)
        if self.backend is not None and not self._paused & SUSPENDED:
            self.backend.resume_reading()
        elif self.login is not None:
            self.login.resume_writing()

    def suspend(self) -> None:
        """The gateway is suspended: neither the client nor its backend is read."""
        self._pause(SUSPENDED)
        if self.backend is not None:
            self.backend.pause_reading()

    def _suspend_if_still(self) -> None:
        if self.context.suspended and not self.transport.is_closing():
            self.suspend()

    def end_suspension(self) -> None:
        """It is not any more."""
        self._resume(SUSPENDED)
        if self.backend is not None and not self._client_full:
            self.backend.resume_reading()
