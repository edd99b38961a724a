"""What a server is, a primary or a standby, and whether that is what a database asks for. Pure.

The words are libpq's (``target_session_attrs``), and so is what they mean. From version 14 on PostgreSQL reports in
each login what is needed to judge it (``in_hot_standby``, ``default_transaction_read_only``). An older one is asked,
on the connection that is to be judged.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk_gateway.errors import BackendRefused

if TYPE_CHECKING:
    from pgtrunk_gateway.config.entries import SessionAttrs

__all__ = ["SOLE", "UNKNOWN", "Question", "Standing", "qualifies", "reported"]

SOLE: Final = ("primary", "read-write")
"""What one server of a cluster is, and the others are not: where it has moved, nobody stays behind."""

_SWITCH: Final = {"on": True, "off": False}
_ROW: Final = ord("D")
_VALUE = struct.Struct("!hi")

_IS_READ_ONLY: Final = "SHOW transaction_read_only"
_IS_STANDBY: Final = "SELECT pg_catalog.pg_is_in_recovery()"


@dataclass(frozen=True, slots=True)
class Standing:
    """None: not known."""

    standby: bool | None = None
    """Whether it follows another server."""
    writable: bool | None = None
    """Whether a transaction that does not say otherwise may write."""

    def __str__(self) -> str:
        match self:
            case Standing(standby=True):
                return "a standby"
            case Standing(writable=False):
                return "read-only"
            case Standing(standby=False):
                return "a primary"
            case Standing(writable=True):
                return "writable"
            case _:
                return "not known"


UNKNOWN: Final = Standing()


def reported(parameters: Mapping[str, str]) -> Standing:
    """What a server has said by itself (ParameterStatus)."""
    standby = _SWITCH.get(parameters.get("in_hot_standby", ""))
    read_only = _SWITCH.get(parameters.get("default_transaction_read_only", ""))
    known = standby is not None and read_only is not None
    return Standing(standby, not (standby or read_only) if known else None)


def qualifies(standing: Standing, attrs: SessionAttrs) -> bool | None:
    """Whether a server is what is asked for; None: that has to be asked. "prefer-standby" is "standby" here."""
    match attrs:
        case "any":
            return True
        case "primary":
            return None if standing.standby is None else not standing.standby
        case "standby" | "prefer-standby":
            return standing.standby
        case "read-write":
            return standing.writable
        case "read-only":
            return None if standing.writable is None else not standing.writable


class Question:
    """What is missing of ``standing``, asked in SQL, and its answer.

    ``physical``: on a connection for physical replication, which runs no SELECT. But it may SHOW, and a standby is
    read-only.
    """

    def __init__(self, standing: Standing, attrs: SessionAttrs, *, physical: bool = False) -> None:
        self._about_writing = attrs in ("read-write", "read-only")
        self.sql = _IS_READ_ONLY if self._about_writing or physical else _IS_STANDBY
        self.standing = standing
        """With the answer in it, once there is one."""
        self.done = False

    def feed(self, kind: int, body: bytes) -> None:
        """Takes a message of the server's. Raises :class:`BackendRefused` where it does not answer."""
        if kind == _ROW:
            count, length = _VALUE.unpack_from(body) if len(body) >= _VALUE.size else (0, 0)
            value = body[_VALUE.size : _VALUE.size + length] if count == 1 else b""
            is_so = value in (b"on", b"t")
            if self._about_writing:
                self.standing = Standing(self.standing.standby, not is_so)
            else:
                self.standing = Standing(is_so, self.standing.writable)
        elif kind == server.ERROR:
            fields = server.parse_error(body)
            raise BackendRefused(
                fields.message,
                sqlstate=fields.sqlstate,
                detail=f"So the server answered {self.sql}, which target_session_attrs has it asked.",
                log=f"{self.sql} failed: {fields.severity} {fields.message}",
            )
        elif kind == server.READY:
            self.done = True
