"""Opens the fronts that the configuration asks for, and says at which line it is wrong where one cannot open."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

from pgtrunk_gateway.fronts.handed import HandedFront
from pgtrunk_gateway.fronts.quic import QuicFront
from pgtrunk_gateway.fronts.tcp import TcpFront
from pgtrunk_gateway.fronts.unix import UnixFront

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fleet.fleet import Fleet
    from pgtrunk_gateway.fronts.front import Front, SessionFactory

__all__ = ["blamed", "open_fronts"]


async def open_fronts(
    loaded: Loaded, session: SessionFactory, tune: Callable[[socket.socket], None], fleet: Fleet | None = None
) -> list[Front]:
    """All fronts, listening; ``tune`` sets the options of TCP sockets. A worker of a ``fleet`` has its sockets from the
    supervisor, and TCP's and unix' connections too.

    Raises :class:`ConfigError` where one cannot open; then none is left open.
    """
    config = loaded.config
    fronts: list[Front] = []
    try:
        # TCP last but for the unix socket, which has its port in its name: who can connect finds the rest there too.
        if config.quic_enabled:
            with blamed(loaded, "UDP", config.quic_listen_port):
                fronts.append(await QuicFront.listen(loaded, session, fleet))
        if fleet is not None:
            fronts += _handed(fleet, session, tune)
            return fronts
        port = config.listen_port
        if config.listen_addr:
            with blamed(loaded, "TCP", port):
                tcp = await TcpFront.listen(
                    config.listen_addr,
                    port,
                    backlog=config.listen_backlog,
                    shared=config.so_reuseport,
                    tune=tune,
                    session=session,
                )
            fronts.append(tcp)
            port = tcp.port
        if config.unix_socket_dir is not None:
            with blamed(loaded, "unix", port):
                unix = await UnixFront.listen(
                    config.unix_socket_dir,
                    port,
                    mode=config.unix_socket_mode,
                    group=config.unix_socket_group,
                    backlog=config.listen_backlog,
                    session=session,
                )
            fronts.append(unix)
    except BaseException:
        await asyncio.gather(*(front.close() for front in fronts))
        raise
    return fronts


def _handed(fleet: Fleet, session: SessionFactory, tune: Callable[[socket.socket], None]) -> list[Front]:
    charter = fleet.charter
    fronts: list[Front] = []
    if charter.tcp:
        fronts.append(HandedFront("tcp", charter.tcp, charter.tcp_port, session, tune))
    if charter.unix:
        fronts.append(HandedFront("unix", charter.unix, charter.tcp_port, session))
    return fronts


@contextlib.contextmanager
def blamed(loaded: Loaded, kind: Literal["UDP", "TCP", "unix"], port: int) -> Iterator[None]:
    """Turns what goes wrong with the sockets of a kind into a :class:`ConfigError`, at the line that asks for them."""
    config = loaded.config
    match kind:
        case "UDP":
            # Without a port of its own, it is listen_port's line that is to blame.
            key = "quic_listen_port" if "quic_listen_port" in loaded.sources else "listen_port"
            hosts = config.quic_listen_addr
        case "TCP":
            key, hosts = "listen_port", config.listen_addr
        case "unix":
            key, hosts = "unix_socket_dir", (config.unix_socket_dir or "",)
    try:
        yield
    except (OSError, LookupError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise loaded.error(key, f"cannot listen on {kind} {', '.join(hosts)} port {port}: {reason}") from error
