"""Sessions over TCP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pgtrunk_gateway.address import readable

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fronts.front import SessionFactory

__all__ = ["TcpFront", "tcp_tuner"]


class TcpFront:
    """The listening sockets of ``listen_addr`` and ``listen_port``."""

    name = "tcp"

    def __init__(self, servers: Sequence[asyncio.Server], addresses: list[str], port: int) -> None:
        self._servers = servers
        self.addresses = addresses
        self.port = port
        """The same on all addresses, also where the system chose it."""

    @classmethod
    async def listen(
        cls,
        hosts: Sequence[str],
        port: int,
        *,
        backlog: int,
        tune: Callable[[socket.socket], None],
        session: SessionFactory,
    ) -> TcpFront:
        """``tune`` sets options that accepted sockets inherit. Raises OSError where an address is not to be had."""
        loop = asyncio.get_running_loop()
        sockets: list[socket.socket] = []
        try:
            for family, address in await _resolve(hosts, port):
                # The system chooses a port once, for all addresses.
                chosen = sockets[0].getsockname()[1] if sockets and not port else address[1]
                sockets.append(_bind(family, (address[0], chosen, *address[2:]), tune))
            servers = [await loop.create_server(lambda: session("tcp"), sock=sock, backlog=backlog) for sock in sockets]
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        return cls(servers, [readable(sock.getsockname()) for sock in sockets], sockets[0].getsockname()[1])

    def drain(self) -> None:
        self.stop_accepting()

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        self.stop_accepting()


async def _resolve(hosts: Sequence[str], port: int) -> list[tuple[int, tuple[Any, ...]]]:
    loop = asyncio.get_running_loop()
    found: dict[tuple[int, tuple[Any, ...]], None] = {}
    for host in hosts:
        infos = await loop.getaddrinfo(
            None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        found |= dict.fromkeys((info[0], info[4]) for info in infos)
    return list(found)


def _bind(family: int, address: tuple[Any, ...], tune: Callable[[socket.socket], None]) -> socket.socket:
    # Named, or asyncio would not take what it accepts for TCP, and leave Nagle's algorithm on.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tune(sock)
        sock.bind(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def tcp_tuner(config: Config) -> Callable[[socket.socket], None]:
    """Sets the tcp_keepalive* options on a socket."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] if config.tcp_keepalive else []
    for option, value in (
        ("TCP_KEEPCNT", config.tcp_keepcnt),
        ("TCP_KEEPIDLE", config.tcp_keepidle),
        ("TCP_KEEPINTVL", config.tcp_keepintvl),
    ):
        if value and hasattr(socket, option):
            options.append((socket.IPPROTO_TCP, getattr(socket, option), value))

    def tune(sock: socket.socket) -> None:
        for level, option, value in options:
            sock.setsockopt(level, option, value)

    return tune
