"""UDP sockets for the workers of a fleet: each address has one for each of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pgtrunk_gateway.quic.groups import join, like, steer
from pgtrunk_gateway.quic.server import bind

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

__all__ = ["bind_udp", "join", "like", "steer_all"]

log = logging.getLogger(__name__)


async def bind_udp(hosts: Sequence[str], port: int, count: int) -> list[list[socket.socket]]:
    """For each of ``count`` workers its own sockets, one for each address of ``hosts``; all on one port, which the
    system chooses where it is 0. Raises OSError where an address is not to be had, and then leaves nothing open."""
    workers = await bind(hosts, port, count)
    steer_all(workers[0], count)
    return workers


def steer_all(first: Sequence[socket.socket], count: int) -> None:
    """Has the kernel give datagrams to ``count`` workers; ``first``: a socket of each address' group."""
    refusals = {refusal for sock in first if (refusal := steer(sock, count)) is not None}
    for refusal in sorted(refusals):
        log.warning("quic: the kernel does not steer datagrams, so workers pass them on: %s", refusal)
