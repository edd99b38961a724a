"""Pools, and how many there are of everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.columns import ints, texts
from pgtrunk_gateway.console.merging import by_key, longest, merge_rows, total
from pgtrunk_gateway.console.registry import SHOWS, show
from pgtrunk_gateway.console.shows.entries import databases, users
from pgtrunk_gateway.fronts.quic import QuicFront

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.merging import Told
    from pgtrunk_gateway.console.view import View
    from pgtrunk_gateway.pool.pool import Pool

__all__: list[str] = []


_POOLS: Final = (
    *texts("database user"),
    *ints("cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req"),
    *ints("sv_active sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us"),
    *texts("pool_mode load_balance_hosts"),
    # ours
    *ints("pool_size pins_total"),
)
_COUNTS: Final = (
    "cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active sv_active_cancel sv_being_canceled"
    " sv_idle sv_used sv_tested sv_login pins_total"
)
_LISTS: Final = (*texts("list"), *ints("items"))
_LISTED: Final[Mapping[str, str]] = {
    "databases": "DATABASES",
    "users": "USERS",
    "pools": "POOLS",
    "peer_pools": "PEER_POOLS",
}
"""Items that have a show, and are on several workers the same ones."""


@show(
    "POOLS",
    _POOLS,
    merge=by_key(
        "POOLS",
        _POOLS,
        "database user",
        {
            **dict.fromkeys(_COUNTS.split(), total),
            **dict.fromkeys(("maxwait", "maxwait_us"), longest("maxwait", "maxwait_us")),
        },
    ),
)
def show_pools(view: View) -> Iterable[Row]:
    for pool in list(view.pools):
        yield _pool(view, pool)
    yield "pgbouncer", "pgbouncer", len(view.consoles), *[0] * 12, "statement", None, 0, 0


def _pool(view: View, pool: Pool) -> Row:
    counts = pool.counts()
    cancels = sum(backend.cancels for backend in pool.backends.values())
    waiting = len(pool.waiting)
    database = view.config.database(pool.key.database)
    mode = view.config.pool_mode if database is None else view.config.resolve_pool_mode(database, pool.key.user)
    seconds, micros = divmod(int(pool.maxwait * 1e6), 1_000_000)
    return (
        pool.key.database,
        pool.key.user,
        max(pool.sessions - waiting, 0),
        # Those too whose login waits for the first one at the server, or for one of its own.
        waiting + pool.greeting.waiting + pool.walsenders.waiting,
        # A cancel request is carried on at once, each by a connection of its own.
        cancels,
        0,
        counts.active,
        cancels,
        counts.being_canceled,
        counts.idle,
        counts.used,
        counts.tested,
        counts.login,
        seconds,
        micros,
        mode,
        database.load_balance_hosts if database is not None and database.others else None,
        pool.limits.size,
        # Sessions that began to keep their backend; SHOW PINS has those that do.
        pool.stats.pin_count,
    )


def _merge_lists(view: View, told: Told) -> Iterable[Row]:
    workers = len(told["LISTS"])
    for name, items in merge_rows(["list", "items"], chain(*told["LISTS"]), ["list"], {"items": total}):
        if name == "free_clients":
            # On each of them: what the others have left of max_client_conn, and more.
            taken = workers * view.config.max_client_conn - int(items or 0)
            yield name, max(view.config.max_client_conn - taken, 0)
        elif name == "peers":
            yield name, len(view.config.peers)
        elif isinstance(name, str) and name in _LISTED:
            merge = SHOWS[_LISTED[name]].merge
            assert merge is not None
            yield name, len(list(merge(view, told)))
        else:
            yield name, items


@show("LISTS", _LISTS, merge=_merge_lists, also=tuple(_LISTED.values()))
def show_lists(view: View) -> Iterable[Row]:
    context = view.context
    yield "databases", len(databases(view)) + 1
    yield "users", len(users(view))
    yield "peers", len(view.config.peers)
    yield "pools", len(view.pools) + 1
    yield "peer_pools", len(context.lanes)
    yield "free_clients", max(view.config.max_client_conn - context.admitted, 0)
    yield "used_clients", len(context.sessions) + len(view.consoles)
    yield "login_clients", sum(session.admission is None for session in context.sessions)
    yield "free_servers", 0
    yield "used_servers", sum(len(pool.backends) for pool in view.pools)
    for name in ("dns_names", "dns_zones", "dns_queries", "dns_pending"):
        yield name, 0
    # ours
    quic = [front for front in view.fronts() if isinstance(front, QuicFront)]
    yield "quic_connections", sum(front.connections for front in quic)
    yield "quic_half_open", sum(front.half_open for front in quic)
    yield "quic_streams", sum(front.streams for front in quic)
    yield "statements", len(context.catalogue)
