"""What a backend is for when no session holds it."""

from __future__ import annotations

import enum

__all__ = ["BackendState"]


class BackendState(enum.Enum):
    """Beside ``holder``: whether it is usable, lost, or between two sessions."""

    OPEN = "open"
    STARTING = "runs connect_query"
    CHECKING = "being checked"
    RESETTING = "being reset"
    RECOVERING = "being recovered"
    CLOSED = "closed"
