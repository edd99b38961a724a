"""What bounds one pool, resolved from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Times in seconds; 0 switches a limit off unless its field says otherwise."""

    size: int = 20
    """Backends, those being opened included (default_pool_size, pool_size)."""
    minimum: int = 0
    """Backends that are opened unasked and not closed for being idle (min_pool_size)."""
    lifetime: float = 3600.0
    """Age at which a backend is closed once it is idle (server_lifetime); 0: it serves one lease."""
    idle_timeout: float = 600.0
    """server_idle_timeout."""
    connect_timeout: float = 15.0
    """For connection and login (server_connect_timeout)."""
    retry: float = 15.0
    """The longest pause after a failed connection (server_login_retry)."""
    prepared: int = 200
    """Named statements kept per backend (max_prepared_statements)."""
