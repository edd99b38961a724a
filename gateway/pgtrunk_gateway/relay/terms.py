"""What the configuration says for one session: when it gives its backend back, and what may last how long. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig, PoolMode, SessionState

__all__ = ["Terms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Times in seconds, 0: no limit. Each field bears the name of its key."""

    pool_mode: PoolMode = "transaction"
    query_wait_timeout: float = 0.0
    query_timeout: float = 0.0
    transaction_timeout: float = 0.0
    idle_transaction_timeout: float = 0.0
    client_idle_timeout: float = 0.0
    reset_query: str | None = None
    """server_reset_query, where backends of this session need one after each lease."""
    tracked: bool = True
    """Whether named statements follow the session (max_prepared_statements, and not in session mode)."""

    lazy_begin: bool = False
    """Whether BEGIN by itself waits for what follows it; only where a backend is given back after a transaction."""
    session_state: SessionState = "pin"
    """What becomes of state that cannot be carried, where the backend is not kept anyway."""

    @classmethod
    def of(cls, config: Config, database: DatabaseConfig, user: str) -> Self:
        """Those of a session of ``user`` in ``database``."""
        mode = config.resolve_pool_mode(database, user)
        keeps = mode == "session"
        return cls(
            pool_mode=mode,
            query_wait_timeout=config.resolve_query_wait_timeout(database, user),
            query_timeout=config.resolve_query_timeout(user),
            transaction_timeout=config.resolve_transaction_timeout(user),
            idle_transaction_timeout=config.resolve_idle_transaction_timeout(user),
            client_idle_timeout=config.resolve_client_idle_timeout(user),
            reset_query=config.server_reset_query or None if keeps or config.server_reset_query_always else None,
            tracked=config.max_prepared_statements > 0 and not keeps,
            lazy_begin=config.lazy_begin and mode == "transaction",
            session_state=config.session_state,
        )

    @property
    def keeps(self) -> bool:
        """Whether a backend is kept to the end of the session."""
        return self.pool_mode == "session"

    @property
    def particular(self) -> bool:
        """Whether anything has to be looked at for each query."""
        return (
            self.pool_mode != "transaction"
            or self.reset_query is not None
            or self.query_timeout > 0
            or self.transaction_timeout > 0
            or self.client_idle_timeout > 0
        )
