"""Opens the fronts that the configuration asks for, and says at which line it is wrong where one cannot open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pgtrunk_gateway.fronts.quic import QuicFront
from pgtrunk_gateway.fronts.tcp import TcpFront
from pgtrunk_gateway.fronts.unix import UnixFront

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fronts.front import Front, SessionFactory

    _Opened = TypeVar("_Opened", bound=Front)

__all__ = ["open_fronts"]


async def open_fronts(loaded: Loaded, session: SessionFactory, tune: Callable[[socket.socket], None]) -> list[Front]:
    """All fronts, listening; ``tune`` sets the options of TCP sockets.

    Raises :class:`ConfigError` where one cannot open; then none is left open.
    """
    config = loaded.config
    fronts: list[Front] = []
    try:
        # TCP last but for the unix socket, which has its port in its name: who can connect finds the rest there too.
        if config.quic_enabled:
            quic = QuicFront.listen(loaded, session)
            # Without a port of its own, it is listen_port's line that is to blame.
            key = "quic_listen_port" if "quic_listen_port" in loaded.sources else "listen_port"
            fronts.append(await _opened(loaded, key, "UDP", config.quic_listen_addr, config.quic_listen_port, quic))
        port = config.listen_port
        if config.listen_addr:
            tcp = TcpFront.listen(
                config.listen_addr,
                config.listen_port,
                backlog=config.listen_backlog,
                shared=config.so_reuseport,
                tune=tune,
                session=session,
            )
            front = await _opened(loaded, "listen_port", "TCP", config.listen_addr, config.listen_port, tcp)
            fronts.append(front)
            port = front.port
        if config.unix_socket_dir is not None:
            unix = UnixFront.listen(
                config.unix_socket_dir,
                port,
                mode=config.unix_socket_mode,
                group=config.unix_socket_group,
                backlog=config.listen_backlog,
                session=session,
            )
            fronts.append(await _opened(loaded, "unix_socket_dir", "unix", (config.unix_socket_dir,), port, unix))
    except BaseException:
        await asyncio.gather(*(front.close() for front in fronts))
        raise
    return fronts


async def _opened(
    loaded: Loaded, key: str, kind: str, hosts: tuple[str, ...], port: int, opening: Awaitable[_Opened]
) -> _Opened:
    try:
        return await opening
    except (OSError, LookupError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise loaded.error(key, f"cannot listen on {kind} {', '.join(hosts)} port {port}: {reason}") from error
