"""Other gateways; and what PgBouncer knows of name servers, which here is the system's business."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pgtrunk_gateway.console.columns import ints, longs, texts
from pgtrunk_gateway.console.registry import show

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.view import View

__all__: list[str] = []


@show("PEERS", (*ints("peer_id"), *texts("host"), *ints("port pool_size")))
def show_peers(view: View) -> Iterable[Row]:
    for peer in view.config.peers.values():
        size = view.config.default_pool_size if peer.pool_size is None else peer.pool_size
        yield peer.peer_id, peer.host, peer.port, size


@show("PEER_POOLS", ints("peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login"))
def show_peer_pools(view: View) -> Iterable[Row]:
    """Cancels are not forwarded to peers yet."""
    return ()


@show("DNS_HOSTS", (*texts("hostname"), *longs("ttl"), *texts("addrs")))
def show_dns_hosts(view: View) -> Iterable[Row]:
    """Names are resolved by the system, each time a connection is opened: nothing is remembered."""
    return ()


@show("DNS_ZONES", (*texts("zonename"), *longs("serial"), *ints("count")))
def show_dns_zones(view: View) -> Iterable[Row]:
    return ()
