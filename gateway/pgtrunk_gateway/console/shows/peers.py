"""Other gateways; and what PgBouncer knows of name servers, which here is the system's business."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.columns import ints, longs, texts
from pgtrunk_gateway.console.merging import by_key, total
from pgtrunk_gateway.console.registry import show

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.view import View

__all__: list[str] = []


@show("PEERS", (*ints("peer_id"), *texts("host"), *ints("port pool_size")), alike=True)
def show_peers(view: View) -> Iterable[Row]:
    for _, peer in sorted(view.config.peers.items()):
        size = view.config.default_pool_size if peer.pool_size is None else peer.pool_size
        yield peer.peer_id, peer.host, peer.port, size


_PEER_POOLS: Final = ints("peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login")


@show(
    "PEER_POOLS",
    _PEER_POOLS,
    merge=by_key(
        "PEER_POOLS", _PEER_POOLS, "peer_id", {column.name: total for column in _PEER_POOLS if column.name != "peer_id"}
    ),
)
def show_peer_pools(view: View) -> Iterable[Row]:
    """As in PgBouncer, a peer has a row from the first cancel on that is forwarded to it."""
    for peer_id, lane in sorted(view.context.lanes.items()):
        yield peer_id, lane.told, lane.waiting + lane.connecting, lane.told, lane.connecting


@show("DNS_HOSTS", (*texts("hostname"), *longs("ttl"), *texts("addrs")), alike=True)
def show_dns_hosts(view: View) -> Iterable[Row]:
    """Names are resolved by the system, each time a connection is opened: nothing is remembered."""
    return ()


@show("DNS_ZONES", (*texts("zonename"), *longs("serial"), *ints("count")), alike=True)
def show_dns_zones(view: View) -> Iterable[Row]:
    return ()
