"""The servers of lists, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pgtrunk_gateway.console.columns import ints, texts
from pgtrunk_gateway.console.registry import show
from pgtrunk_gateway.pool.primary import HostList

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.view import View
    from pgtrunk_gateway.pool.primary import Listed

__all__: list[str] = []


@show(
    "HOSTS",
    (*texts("list target_session_attrs host"), *ints("port"), *texts("standing state"), *ints("current backends")),
)
def show_hosts(view: View) -> Iterable[Row]:
    """Only those of which one is chosen: a database with one host has it in SHOW DATABASES."""
    for servers in view.pools.hosts.values():
        if isinstance(servers, HostList):
            for server in servers.servers:
                yield _server(view, servers, server)


def _server(view: View, servers: HostList, server: Listed) -> Row:
    backends = [backend for pool in view.pools if pool.host is servers for backend in pool.backends.values()]
    return (
        servers.label,
        servers.attrs,
        server.place.host,
        server.place.port,
        str(server.standing) if server.standing is not None else "not known",
        "down" if server.backoff.failures else "up" if server.standing is not None else "not known",
        int(server is servers.current),
        sum(backend.target.place == server.place for backend in backends),
    )
