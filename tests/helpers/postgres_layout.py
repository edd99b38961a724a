"""Whether a message of a client has the layout that the documentation gives it, for :mod:`helpers.postgres_model`."""

from __future__ import annotations

import re
import struct

from helpers.postgres_sql import SqlError, bound

__all__ = ["check_layout"]

_TEXT = rb"[^\0]*\0"
_LAYOUTS = {
    "Q": _TEXT,
    "P": _TEXT + _TEXT + rb".{2}.*",
    "B": _TEXT + _TEXT + rb".{2}.*",
    "D": rb"[SP]" + _TEXT,
    "C": rb"[SP]" + _TEXT,
    "E": _TEXT + rb".{4}",
    "S": rb"",
    "H": rb"",
    "F": rb".{4}.*",
}


def check_layout(kind: str, body: bytes) -> bytes:
    """``body``; raises :class:`SqlError` for a message that Postgres does not understand."""
    try:
        if re.fullmatch(_LAYOUTS[kind], body, re.DOTALL) is None:
            raise ValueError
        if kind == "P":
            (count,) = struct.unpack_from("!h", rest := body.split(b"\0", 2)[2])
            if len(rest) != 2 + 4 * count:
                raise ValueError
        if kind == "B":
            bound(body.split(b"\0", 2)[2])
        body.decode() if kind == "Q" else None
    except (ValueError, struct.error):
        raise SqlError("08P01", "invalid message format") from None
    return body
