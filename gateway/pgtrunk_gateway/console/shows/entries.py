"""The entries of [databases] and [users], with what is in use of their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.columns import ints, texts
from pgtrunk_gateway.console.merging import Rule, by_key, most, total
from pgtrunk_gateway.console.registry import show

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import DatabaseConfig
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.view import View

__all__ = ["databases", "users"]


def databases(view: View) -> list[DatabaseConfig]:
    """The entries, those too that "*" has stood for; without the console's own."""
    names = dict.fromkeys([*view.config.databases, *view.pools.databases])
    return [entry for name in names if (entry := view.config.database(name)) is not None]


def users(view: View) -> list[str]:
    """Everybody that the gateway knows by name."""
    config = view.config
    known = set(config.users) | set(view.userlist())
    known |= {entry.user for entry in config.databases.values() if entry.user is not None}
    known |= {session.admission.user for session in view.context.sessions if session.admission is not None}
    known |= {pool.key.user for pool in view.pools} | {console.user for console in view.consoles}
    return sorted(known)


_DATABASES: Final = (
    *texts("name host"),
    *ints("port"),
    *texts("database force_user"),
    *ints("pool_size min_pool_size reserve_pool_size server_lifetime"),
    *texts("pool_mode load_balance_hosts"),
    *ints("max_connections current_connections max_client_connections current_client_connections paused disabled"),
)
_USERS: Final = (
    *texts("name pool_size reserve_pool_size pool_mode"),
    *ints("max_user_connections current_connections max_user_client_connections current_client_connections"),
)
_CURRENT: Final[Mapping[str, Rule]] = {"current_connections": total, "current_client_connections": total}


@show(
    "DATABASES",
    _DATABASES,
    merge=by_key("DATABASES", _DATABASES, "name", {**_CURRENT, "paused": most, "disabled": most}),
)
def show_databases(view: View) -> Iterable[Row]:
    clients = Counter(session.admission.database for session in view.context.sessions if session.admission is not None)
    for entry in databases(view):
        yield _database(view, entry, clients[entry.name])
    config = view.config
    yield (
        "pgbouncer", None, config.listen_port, "pgbouncer", "pgbouncer", 2, config.min_pool_size,
        config.reserve_pool_size, int(config.server_lifetime), "statement", None, config.max_db_connections, 0,
        config.max_db_client_connections, len(view.consoles), 0, 0,
    )  # fmt: skip


def _database(view: View, entry: DatabaseConfig, clients: int) -> Row:
    config, pools = view.config, view.pools
    state = pools.databases.get(entry.name)
    account = pools.database_accounts.get(entry.name)
    return (
        entry.name,
        ",".join(place.host for place in entry.places) or None,
        entry.port,
        entry.server_dbname,
        entry.user,
        config.default_pool_size if entry.pool_size is None else entry.pool_size,
        config.min_pool_size if entry.min_pool_size is None else entry.min_pool_size,
        config.reserve_pool_size if entry.reserve_pool_size is None else entry.reserve_pool_size,
        int(config.resolve_server_lifetime(entry)),
        entry.pool_mode,
        entry.load_balance_hosts if entry.others else None,
        config.resolve_max_db_connections(entry),
        account.count if account is not None else 0,
        config.resolve_max_db_client_connections(entry),
        clients,
        int(state is not None and state.paused),
        int(state is not None and state.disabled),
    )


@show("USERS", _USERS, merge=by_key("USERS", _USERS, "name", _CURRENT))
def show_users(view: View) -> Iterable[Row]:
    sessions = [session.admission.user for session in view.context.sessions if session.admission is not None]
    clients = Counter([*sessions, *(console.user for console in view.consoles)])
    for name in users(view):
        entry = view.config.user_entry(name)
        account = view.pools.user_accounts.get(name)
        yield (
            name,
            _size(entry.pool_size),
            _size(entry.reserve_pool_size),
            entry.pool_mode,
            view.config.resolve_max_user_connections(name),
            account.count if account is not None else 0,
            view.config.resolve_max_user_client_connections(name),
            clients[name],
        )


def _size(size: int | None) -> str:
    """A text in PgBouncer, to be empty where it is not set."""
    return "" if size is None else f"{size:9d}"
