"""Tables as the console answers them: typed columns, and values in text or in binary. Pure.

The types are PgBouncer's: int4, int8, numeric, and text for all else, points in time too.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import encode

__all__ = [
    "Column",
    "Kind",
    "Row",
    "Table",
    "Value",
    "data_row",
    "ints",
    "longs",
    "numerics",
    "row_description",
    "texts",
]

Value: TypeAlias = int | str | None
Row: TypeAlias = Sequence[Value]

BINARY: Final = 1
"""The format code; text is 0."""
_FIELD: Final = struct.Struct("!ihihih").pack
_BASE: Final = 10_000
"""Of the digits of a binary numeric."""


class Kind(enum.Enum):
    """A column's type, by its OID in Postgres."""

    INT8 = 20
    INT4 = 23
    TEXT = 25
    NUMERIC = 1700


class Column(NamedTuple):
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Table:
    """An answer. ``rows`` are made as they are sent, so that a long one stops nobody."""

    columns: Sequence[Column]
    rows: Iterable[Row]


def texts(names: str) -> tuple[Column, ...]:
    """Columns of text; ``names`` has spaces in between."""
    return tuple(Column(name, Kind.TEXT) for name in names.split())


def ints(names: str) -> tuple[Column, ...]:
    """Columns of int4."""
    return tuple(Column(name, Kind.INT4) for name in names.split())


def longs(names: str) -> tuple[Column, ...]:
    """Columns of int8."""
    return tuple(Column(name, Kind.INT8) for name in names.split())


def numerics(names: str) -> tuple[Column, ...]:
    """Columns of numeric, all of them whole numbers."""
    return tuple(Column(name, Kind.NUMERIC) for name in names.split())


def row_description(columns: Sequence[Column], formats: Sequence[int] = ()) -> bytes:
    """``formats``: none for text throughout, else one code per column."""
    parts = [struct.pack("!h", len(columns))]
    for at, (name, kind) in enumerate(columns):
        code = formats[at] if formats else 0
        parts.append(name.encode() + b"\0" + _FIELD(0, 0, kind.value, _SIZES.get(kind, -1), -1, code))
    return encode(b"T", b"".join(parts))


def data_row(columns: Sequence[Column], row: Row, formats: Sequence[int] = ()) -> bytes:
    """A row; see :func:`row_description`."""
    if not formats:
        return server.data_row([None if value is None else _text(value) for value in row])
    values: list[bytes | None] = []
    for column, value, code in zip(columns, row, formats, strict=True):
        if value is None:
            values.append(None)
        else:
            values.append(_ENCODERS[column.kind](value) if code == BINARY else _text(value))
    return server.data_row(values)


def _text(value: int | str) -> bytes:
    # A name may hold what was no UTF-8; a zero would end the text for most clients.
    return str(value).replace("\0", "").encode("utf-8", "replace")


def _integer(size: int) -> Callable[[int | str], bytes]:
    largest = (1 << (8 * size - 1)) - 1

    def binary(value: int | str) -> bytes:
        # A count that has outgrown its type stays at the type's largest.
        return max(-largest, min(int(value), largest)).to_bytes(size, "big", signed=True)

    return binary


def _numeric(value: int | str) -> bytes:
    number = int(value)
    left, digits = abs(number), list[int]()
    while left:
        left, digit = divmod(left, _BASE)
        digits.insert(0, digit)
    weight = max(len(digits) - 1, 0)
    return struct.pack(f"!hhHh{len(digits)}h", len(digits), weight, 0x4000 if number < 0 else 0, 0, *digits)


_SIZES: Final[Mapping[Kind, int]] = {Kind.INT4: 4, Kind.INT8: 8}
_ENCODERS: Final[Mapping[Kind, Callable[[int | str], bytes]]] = {
    Kind.INT4: _integer(4),
    Kind.INT8: _integer(8),
    Kind.TEXT: _text,
    Kind.NUMERIC: _numeric,
}
