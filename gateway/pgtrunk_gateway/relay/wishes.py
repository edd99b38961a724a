"""What a startup packet asks for: who, where, and with which settings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import LoginRefused, NotSupported
from pgtrunk_gateway.session import parameters

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["carried", "names", "settings"]


def names(packet: Mapping[str, str]) -> tuple[str, str]:
    """User and database, which is the user's name where none is given."""
    user = packet.get("user", "")
    if not user:
        raise LoginRefused("no user name specified in startup packet")
    if packet.get("replication", "false").lower() not in ("false", "off", "no", "0"):
        raise NotSupported("replication connections are not supported yet", severity="FATAL")
    return user, packet.get("database") or user


def settings(packet: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
    """The settings in a startup packet that the session will have."""
    wanted = {}
    for name, value in packet.items():
        if name in ("user", "database", "replication"):
            continue
        tracked = parameters.tracked_name(name)
        if tracked is not None:
            wanted[tracked] = parameters.startup_value(tracked, value)
        elif name not in ignored:
            raise _unsupported(name)
    return wanted


def carried(wanted: Mapping[str, str], reported: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
    """Those of ``wanted`` that this server reports, as older ones do not all: others would not be made anywhere."""
    for name in wanted:
        if name not in reported and name not in ignored:
            raise _unsupported(name)
    return {name: value for name, value in wanted.items() if name in reported}


def _unsupported(name: str) -> NotSupported:
    return NotSupported(
        f"unsupported startup parameter: {name}",
        severity="FATAL",
        detail="In transaction pooling only settings that the server reports follow a session to its next backend.",
        hint=f"Add {name} to ignore_startup_parameters to have it dropped, or set it with ALTER ROLE.",
    )
