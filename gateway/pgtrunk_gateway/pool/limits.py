"""What bounds one pool, resolved from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PoolLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Times in seconds; 0 switches a limit off unless its field says otherwise."""

    size: int = 20
    """Backends, those being opened included (default_pool_size, pool_size)."""
    minimum: int = 0
    """Backends that are opened unasked and not closed for being idle (min_pool_size)."""
    reserve: int = 0
    """Backends beyond ``size`` for sessions that have waited long (reserve_pool_size)."""
    reserve_timeout: float = 5.0
    """How long they must have waited (reserve_pool_timeout); 0: there is no reserve."""
    lifetime: float = 3600.0
    """Age at which a backend is closed once it is idle (server_lifetime); 0: it serves one lease."""
    idle_timeout: float = 600.0
    """server_idle_timeout."""
    connect_timeout: float = 15.0
    """For connection and login, for connect_query, and for a check (server_connect_timeout)."""
    retry: float = 15.0
    """The longest pause after a failed connection (server_login_retry)."""
    prepared: int = 200
    """Named statements kept per backend (max_prepared_statements)."""
    round_robin: bool = False
    """Whether the backend that has been idle longest is used next (server_round_robin)."""
    connect_query: str | None = None
    """What each new backend runs before anybody gets it (connect_query)."""
    check_query: str | None = None
    """What tells whether an idle backend is alive, "" an empty query (server_check_query); None: none is checked."""
    check_delay: float = 30.0
    """How long a backend may be idle unchecked (server_check_delay); 0: not at all."""
    notify: float = 0.0
    """After how long a session that waits is told so (query_wait_notify)."""

    @property
    def checks_always(self) -> bool:
        """Whether no backend is given to anybody unchecked."""
        return self.check_query is not None and not self.check_delay

    soonest: float = field(init=False)
    """After how long an idle backend is looked at, at the earliest; infinity: never. Looked up at each release."""

    def __post_init__(self) -> None:
        times = [self.idle_timeout, self.lifetime, self.check_delay if self.check_query is not None else 0.0]
        object.__setattr__(self, "soonest", min((time for time in times if time), default=float("inf")))
