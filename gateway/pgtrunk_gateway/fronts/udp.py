"""UDP sockets for the workers of a fleet: each address has one for each of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from pgtrunk.quic.sockets import bind_group, steer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bind_udp"]

log = logging.getLogger(__name__)


async def bind_udp(hosts: Sequence[str], port: int, count: int) -> list[list[socket.socket]]:
    """For each of ``count`` workers its own sockets, one for each address of ``hosts``; all on one port, which the
    system chooses where it is 0. Raises OSError where an address is not to be had, and then leaves nothing open."""
    workers: list[list[socket.socket]] = [[] for _ in range(count)]
    loop = asyncio.get_running_loop()
    try:
        for host in hosts:
            chosen = port or (workers[0][0].getsockname()[1] if workers[0] else 0)
            infos = await loop.getaddrinfo(
                None if host == "*" else host, chosen, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
            for own, bound in zip(workers, bind_group(infos, count), strict=True):
                own += bound
        refusals = {refusal for sock in workers[0] if (refusal := steer(sock, count)) is not None}
        for refusal in sorted(refusals):
            log.warning("quic: the kernel does not steer datagrams, so workers pass them on: %s", refusal)
    except BaseException:
        for own in workers:
            for sock in own:
                sock.close()
        raise
    return workers
