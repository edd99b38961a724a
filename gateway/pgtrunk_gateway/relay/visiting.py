"""The login to the console: who may enter, and whether as an administrator.

Three ways. On the unix socket, who has the gateway's own uid needs no password: the process could be stopped by them
anyway. Everybody else logs in as to any database, and must then be in admin_users or stats_users. With auth_type "any"
there is no login: the name alone decides (PgBouncer lets any name look then; here it must be in stats_users).
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.startup import PROTOCOL_3_0
from pgtrunk_gateway.config.entries import DatabaseConfig
from pgtrunk_gateway.errors import NotAllowed
from pgtrunk_gateway.relay.authentication import authenticate
from pgtrunk_gateway.relay.wishes import names

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.dialogue import Dialogue
    from pgtrunk_gateway.relay.tally import Place

__all__ = ["OWNERS", "Visit", "log_in_to_console", "peer_uid"]

OWNERS: Final = frozenset({"pgbouncer", "pgtrunk"})
"""Users that are administrators where they have the gateway's uid."""

_UCRED: Final = struct.Struct("3i")
"""Linux: pid, uid, gid (unix(7), SO_PEERCRED)."""
_XUCRED: Final = struct.Struct("2I")
"""BSD and macOS: the beginning of struct xucred, version and uid (unix(4), LOCAL_PEERCRED)."""
_XUCRED_SIZE: Final = 76


@dataclass(frozen=True, slots=True)
class Visit:
    """A login to the console."""

    user: str
    database: str
    """Under which of its names."""
    admin: bool
    """Whether it may do more than look."""
    application_name: str = ""
    protocol: int = PROTOCOL_3_0
    """What its client speaks."""
    place: Place | None = None
    """What it counts as, until it leaves."""


async def log_in_to_console(
    context: Context, dialogue: Dialogue, packet: Mapping[str, str], address: str | None
) -> Visit:
    """``packet``: the parameters of the startup packet. Raises the error to refuse it with."""
    user, database = names(packet)
    admin = user in OWNERS and peer_uid(dialogue.transport) == os.getuid()
    if not admin:
        if context.config.auth_type != "any":
            user = (await authenticate(context, dialogue, user, address, _entry(context.config, database))).user
        admin = _is_admin(context.config, user)
    return Visit(user, database, admin=admin, application_name=packet.get("application_name", ""))


def _entry(config: Config, database: str) -> DatabaseConfig | None:
    """For auth_query it is a database without settings of its own; None where auth_dbname names no other to ask in."""
    entry = DatabaseConfig(name=database)
    return None if config.resolve_auth_dbname(entry) == database else entry


def _is_admin(config: Config, user: str) -> bool:
    if user in config.admin_users:
        return True
    if user in config.stats_users:
        return False
    raise NotAllowed(
        "not allowed",
        detail="The console is for admin_users and stats_users.",
        severity="FATAL",
        log=f"not allowed: {user!r} is neither in admin_users nor in stats_users",
    )


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """The uid of the process at the other end of a unix socket; None where there is none, or it cannot be had."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    try:
        if hasattr(socket, "SO_PEERCRED"):
            _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        else:
            level, option = 0, getattr(socket, "LOCAL_PEERCRED", 1)
            _, uid = _XUCRED.unpack_from(sock.getsockopt(level, option, _XUCRED_SIZE))
    except (OSError, struct.error):
        return None
    return int(uid)
