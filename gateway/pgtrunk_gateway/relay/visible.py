"""What SHOW CLIENTS tells of a session, read off when somebody looks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.relay.pacing import Pacing
from pgtrunk_gateway.session.parameters import TRACKED
from pgtrunk_gateway.session.sql.traces import Pin
from pgtrunk_gateway.session.state import State

if TYPE_CHECKING:
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["Visible"]

_APPLICATION: Final = TRACKED.index("application_name")


class Visible(Pacing):
    """A session as the console sees it."""

    profile: Profile
    """The settings that the client wants."""

    pins = Pin.NONE
    """For what it keeps its backend."""
    pinned_at = 0.0
    """Since when, by the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.connect_time = time.time()
        """When it connected, in seconds since 1970."""
        self._since = self._time()

    @property
    def request_time(self) -> float:
        """When the last transaction or query began, in seconds since 1970."""
        last = max(self._since, self._asked_at, self._begun_at, self._turn_at)
        return self.connect_time + last - self._since

    @property
    def waits(self) -> bool:
        """Whether a request of it waits for a backend."""
        return self.state is State.WAITING

    @property
    def wait(self) -> float:
        """Seconds for which it has been waiting for a backend."""
        return self._time() - self._waits_since if self.state is State.WAITING else 0.0

    @property
    def word(self) -> str:
        """PgBouncer's word for its state: "active" with a backend, "waiting" for one, or "idle"."""
        if self.backend is not None:
            return "active"
        return "waiting" if self.state in (State.WAITING, State.LOGIN) else "idle"

    @property
    def application_name(self) -> str:
        return (self.profile[_APPLICATION] if self.profile else None) or ""

    @property
    def prepared_statements(self) -> int:
        """Named statements that follow it."""
        return len(self.requests.statements)
