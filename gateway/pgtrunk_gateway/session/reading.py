"""The names in a client's messages, as Postgres would read them; None where it would not. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["statement_name", "text_within"]

_STATEMENT: Final = ord("S")


def text_within(data: bytes, start: int, end: int) -> tuple[bytes | None, int]:
    """The text at ``start`` and the offset behind its zero; None where none ends before ``end``."""
    zero = data.find(0, start, end)
    return (None, 0) if zero < 0 else (data[start:zero], zero + 1)


def statement_name(data: bytes, pos: int, end: int) -> bytes | None:
    """Which statement a Describe or Close is about; None: a portal, or nothing that Postgres would understand."""
    name, name_end = text_within(data, pos + 6, end)
    return name if name_end == end and data[pos + 5] == _STATEMENT else None
