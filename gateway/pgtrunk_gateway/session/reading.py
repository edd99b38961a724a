"""The names and values in a client's messages, as Postgres would read them; None where it would not. Pure."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

__all__ = ["bound_values", "statement_name", "text_within"]

_STATEMENT: Final = ord("S")
_COUNT: Final = Struct("!H").unpack_from
_SIZE: Final = Struct("!i").unpack_from


def text_within(data: bytes, start: int, end: int) -> tuple[bytes | None, int]:
    """The text at ``start`` and the offset behind its zero; None where none ends before ``end``."""
    zero = data.find(0, start, end)
    return (None, 0) if zero < 0 else (data[start:zero], zero + 1)


def statement_name(data: bytes, pos: int, end: int) -> bytes | None:
    """Which statement a Describe or Close is about; None: a portal, or nothing that Postgres would understand."""
    name, name_end = text_within(data, pos + 6, end)
    return name if name_end == end and data[pos + 5] == _STATEMENT else None


def bound_values(data: bytes, at: int, end: int) -> list[bytes | None]:
    """The values in the Bind message before ``end`` whose statement's name ends before ``at``: as many as are there."""
    values: list[bytes | None] = []
    end = min(end, len(data))
    try:
        at += 2 + 2 * _COUNT(data, at)[0]
        count, at = _COUNT(data, at)[0], at + 2
        while len(values) < count:
            (size,) = _SIZE(data, at)
            at += 4
            if at + size > end:
                break
            values.append(data[at : at + size] if size >= 0 else None)
            at += max(size, 0)
    except StructError:
        pass
    return values
