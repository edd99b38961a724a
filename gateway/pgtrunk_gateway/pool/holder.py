"""What a backend and its pool know of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["Holder"]


class Holder(Protocol):
    """A session as seen from below. None of these calls may raise."""

    profile: Profile
    """The settings that the session wants."""

    def offer(self, backend: Backend) -> bool:
        """Hands ``backend`` over -> False where the session does not wait any more, and somebody else shall have it."""
        ...

    def refuse(self, error: GatewayError) -> None:
        """The session, which waits, gets no backend."""

    def notify(self) -> None:
        """The session has waited for query_wait_notify, and waits on."""

    @property
    def relay(self) -> Callable[[bytes], None]:
        """Takes bytes from the backend."""
        ...

    def settled(self) -> None:
        """Nothing is owed to the session any more; it may give the backend back."""

    def backend_lost(self, error: GatewayError, told: bool) -> None:
        """The backend is gone, and with it what the session had running. ``told``: Postgres has said so itself."""

    def backend_full(self) -> None:
        """The backend's socket takes no more for now."""

    def backend_drained(self) -> None:
        """It takes more again."""
