"""Values in text and in binary, as Postgres would send them."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.console.columns import Column, data_row, ints, longs, numerics, row_description, texts

COLUMNS = (*ints("a"), *longs("b"), *numerics("c"), *texts("d"))


def test_the_description_has_types_sizes_and_formats() -> None:
    description = row_description(COLUMNS, (1, 1, 1, 1))
    assert description[:7] == b"T" + (4 + 2 + 4 * 20).to_bytes(4, "big") + b"\0\4"
    for at, (name, oid, size) in enumerate([(b"a", 23, 4), (b"b", 20, 8), (b"c", 1700, -1), (b"d", 25, -1)]):
        field = description[7 + at * 20 :][:20]
        assert field[:2] == name + b"\0"
        assert int.from_bytes(field[8:12], "big") == oid
        assert int.from_bytes(field[12:14], "big", signed=True) == size
        assert field[-2:] == b"\0\1"


def test_text_is_what_all_drivers_read() -> None:
    assert data_row(COLUMNS, (1, -2, 3, "x")) == b"D" + (4 + 2 + 21).to_bytes(4, "big") + (
        b"\0\4\0\0\0\1" + b"1" + b"\0\0\0\2" + b"-2" + b"\0\0\0\1" + b"3" + b"\0\0\0\1" + b"x"
    )


@pytest.mark.parametrize(
    ("columns", "value", "binary"),
    [
        (ints("a"), 1, b"\0\0\0\1"),
        (ints("a"), -1, b"\xff\xff\xff\xff"),
        (ints("a"), 1 << 40, b"\x7f\xff\xff\xff"),
        (longs("a"), 1 << 40, b"\0\0\1\0\0\0\0\0"),
        (texts("a"), "ä", "ä".encode()),
        (texts("a"), "a\0b\udcff", b"ab?"),
        (numerics("a"), 0, bytes.fromhex("0000 0000 0000 0000")),
        (numerics("a"), 7, bytes.fromhex("0001 0000 0000 0000 0007")),
        (numerics("a"), -12345, bytes.fromhex("0002 0001 4000 0000 0001 0929")),
        (numerics("a"), 10**8, bytes.fromhex("0003 0002 0000 0000 0001 0000 0000")),
    ],
)
def test_binary(columns: tuple[Column, ...], value: int | str, binary: bytes) -> None:
    assert data_row(columns, (value,), (1,))[11:] == binary


@pytest.mark.parametrize("formats", [(), (0,), (1,)])
def test_null_is_null_in_every_format(formats: tuple[int, ...]) -> None:
    assert data_row(texts("a"), (None,), formats)[7:] == b"\xff\xff\xff\xff"
