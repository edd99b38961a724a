"""Sessions over TCP."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pgtrunk_gateway.address import readable

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fronts.front import SessionFactory

__all__ = ["TcpFront", "bind_tcp", "check_tuning", "tcp_tuner"]


class TcpFront:
    """The listening sockets of ``listen_addr`` and ``listen_port``."""

    name = "tcp"

    def __init__(
        self,
        servers: Sequence[asyncio.Server],
        addresses: list[str],
        port: int,
        tune: Callable[[socket.socket], None],
    ) -> None:
        self._servers = servers
        self._tune = tune
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
        shared: bool = False,
        tune: Callable[[socket.socket], None],
        session: SessionFactory,
    ) -> TcpFront:
        """``tune`` sets options that accepted sockets inherit; ``shared``: other processes may listen beside this one
        (so_reuseport). Raises OSError where an address is not to be had."""
        loop = asyncio.get_running_loop()
        sockets = await bind_tcp(hosts, port, shared=shared, tune=tune)
        servers: list[asyncio.Server] = []
        try:
            for sock in sockets:
                server = await loop.create_server(
                    lambda: session("tcp"), sock=sock, backlog=backlog, start_serving=False
                )
                servers.append(server)
                await server.start_serving()
        except BaseException:
            # Or the loop would go on to look at their descriptors, which are somebody else's soon.
            for server in servers:
                server.close()
            for sock in sockets:
                sock.close()
            raise
        return cls(servers, [readable(sock.getsockname()) for sock in sockets], sockets[0].getsockname()[1], tune)

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        return self._tune_again

    def _tune_again(self) -> None:
        # Who is accepted from now on inherits the options.
        for server in self._servers:
            for listening in server.sockets:
                with _socket_of(listening) as sock:
                    self._tune(sock)

    def drain(self) -> None:
        self.stop_accepting()

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        self.stop_accepting()


async def bind_tcp(
    hosts: Sequence[str], port: int, *, shared: bool = False, tune: Callable[[socket.socket], None]
) -> list[socket.socket]:
    """A socket for each address, bound and not listening yet, all on one port. Raises OSError where an address is not
    to be had, and then leaves nothing open."""
    sockets: list[socket.socket] = []
    try:
        for family, address in await _resolve(hosts, port):
            # The system chooses a port once, for all addresses.
            chosen = sockets[0].getsockname()[1] if sockets and not port else address[1]
            sockets.append(_bind(family, (address[0], chosen, *address[2:]), tune, shared=shared))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


async def _resolve(hosts: Sequence[str], port: int) -> list[tuple[int, tuple[Any, ...]]]:
    loop = asyncio.get_running_loop()
    found: dict[tuple[int, tuple[Any, ...]], None] = {}
    for host in hosts:
        infos = await loop.getaddrinfo(
            None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        found |= dict.fromkeys((info[0], info[4]) for info in infos)
    return list(found)


def _bind(
    family: int, address: tuple[Any, ...], tune: Callable[[socket.socket], None], *, shared: bool
) -> socket.socket:
    # Named, or asyncio would not take what it accepts for TCP, and leave Nagle's algorithm on.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, _reuse_port(), 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tune(sock)
        sock.bind(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _reuse_port() -> int:
    option = getattr(socket, "SO_REUSEPORT", None)
    if option is None:
        raise OSError(errno.ENOPROTOOPT, "this system has no SO_REUSEPORT, which so_reuseport asks for")
    return int(option)


def _socket_of(listening: Any) -> socket.socket:
    """A socket of its own for what a server shows of its socket, which is not to be touched."""
    return socket.socket(fileno=os.dup(listening.fileno()))


def tcp_tuner(config: Callable[[], Config]) -> Callable[[socket.socket], None]:
    """Sets the tcp_keep* options and tcp_user_timeout on a socket, as ``config`` has them at that time."""

    def tune(sock: socket.socket) -> None:
        for _, level, option, value in _options(config()):
            sock.setsockopt(level, option, value)

    return tune


def check_tuning(loaded: Loaded) -> None:
    """Raises :class:`ConfigError` for an option that this system does not take: it would fail at each connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        for key, level, option, value in _options(loaded.config):
            try:
                probe.setsockopt(level, option, value)
            except OSError as error:
                raise loaded.error(key, f"{value} is not possible on this system: {error.strerror}") from error


def _options(config: Config) -> Iterator[tuple[str, int, int, int]]:
    """Key, level, option, value."""
    yield "tcp_keepalive", socket.SOL_SOCKET, socket.SO_KEEPALIVE, config.tcp_keepalive
    for name, value in (
        ("TCP_KEEPCNT", config.tcp_keepcnt),
        ("TCP_KEEPIDLE", config.tcp_keepidle),
        ("TCP_KEEPINTVL", config.tcp_keepintvl),
        ("TCP_USER_TIMEOUT", config.tcp_user_timeout),
    ):
        # 0 leaves the system's.
        if value and hasattr(socket, name):
            yield name.lower(), socket.IPPROTO_TCP, getattr(socket, name), value
