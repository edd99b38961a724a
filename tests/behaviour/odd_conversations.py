"""Conversations with large and odd messages, as in :mod:`behaviour.portal_conversations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["ODD"]

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
MANY: Final = 65_535
COLUMNS: Final = 1664
WORDS: Final = {
    "latin1": "größer",
    "win1252": "größer €",
    "koi8r": "привет",
    "sjis": "表示能力",
    "euc_jp": "表示能力",
    "gbk": "表示能力",
    "big5": "功能表",
    "gb18030": "表示能力€",
    "uhc": "한국어",
}
CODECS: Final = {"koi8r": "koi8-r", "win1252": "cp1252", "uhc": "cp949"}


def once(sql: bytes, *values: bytes | None) -> bytes:
    return parse(b"", sql) + bind(b"", b"", values) + describe_portal(b"") + execute()


def spoken(encoding: str, word: str) -> list[Step]:
    """A text, a statement with it, its name, a column, an error and a cursor, all in this encoding."""
    octets = word.encode(CODECS.get(encoding, encoding))
    return [
        (query(b"set client_encoding = '" + encoding.encode() + b"'"), "Z"),
        (query(b"select '" + octets + b"', length('" + octets + b"') as \"" + octets + b'"'), "Z"),
        (once(b"select $1::text, length($1)", octets) + SYNC, "Z"),
        (parse(octets, b"select '" + octets + b"' || $1") + describe_statement(octets) + SYNC, "Z"),
        (bind(b"", octets, [octets]) + execute() + SYNC, "Z"),
        (bind(b"", octets + b"x", [octets]) + execute() + SYNC, "Z"),
        (query(b'select * from "' + octets + b'"'), "Z"),
        (query(b"do $$ begin raise notice '%', '" + octets + b"'; end $$"), "Z"),
        (query(b"select '\xff\xfe\xfd'"), "Z"),
        (query(b"reset client_encoding"), "Z"),
        (bind(b"", octets, [b"x"]) + execute() + SYNC, "Z"),
    ]


NUMBERED: Final = (
    b"select coalesce(array_length(array[" + b",".join(b"$%d" % n for n in range(1, MANY + 1)) + b"]::int[], 1), 0)"
)
SAYS: Final = b"do $$ begin for n in 1..3 loop raise notice 'n = %', n; end loop; raise warning 'w'; end $$"
TELLS: Final = b"select n, set_config('application_name', 'a' || n, false) from generate_series(1, 3) n"

ODD: dict[str, list[Step]] = {
    "65,535 parameters": [
        (parse(b"many", NUMBERED) + SYNC, "Z"),
        (bind(b"", b"many", [b"1"] * MANY) + execute() + SYNC, "Z"),
        (bind(b"", b"many", [None] * MANY) + execute() + SYNC, "Z"),
        (bind(b"", b"many", [b"1"] * (MANY - 1)) + execute() + SYNC, "Z"),
        (describe_statement(b"many") + SYNC, "Z"),
        (once(NUMBERED, *[b"123456"] * MANY) + SYNC, "Z"),
        (query(b"select 1"), "Z"),
    ],
    "1,664 columns": [
        (query(b"select " + b",".join(b"%d" % n for n in range(COLUMNS))), "Z"),
        (once(b"select " + b",".join(b"%d as c%d" % (n, n) for n in range(COLUMNS))) + SYNC, "Z"),
        (once(b"select " + b",".join(b"null" for n in range(COLUMNS))) + SYNC, "Z"),
        (query(b"select " + b",".join(b"%d" % n for n in range(COLUMNS + 1))), "Z"),
        (query(b"select 1"), "Z"),
    ],
    "large values": [
        (once(b"select length($1), md5($1)", b"x" * 500_000) + SYNC, "Z"),
        (once(b"select $1::text", b"y" * 500_000) + SYNC + query(b"select 1"), "ZZ"),
        (query(b"select length('" + b"z" * 500_000 + b"')") + query(b"select 2"), "ZZ"),
        (once(b"select $1::int", b"z" * 500_000) + once(b"select 1") + SYNC + query(b"select 3"), "ZZ"),
        (parse(b"l", b"select length($1) -- " + b"w" * 500_000) + SYNC, "Z"),
        (bind(b"", b"l", [b"x" * 500_000]) + execute() + bind(b"", b"l", [b"x"]) + execute() + SYNC, "Z"),
        (bind(b"", b"no", [b"x" * 500_000]) + execute() + SYNC + query(b"select 4"), "ZZ"),
    ],
    "the name of a notice": [
        (query(SAYS), "Z"),
        (once(SAYS) + SYNC, "Z"),
        (query(b"begin"), "Z"),
        (query(SAYS), "Z"),
        (query(b"drop table if exists nowhere; commit"), "Z"),
        (query(b"set client_min_messages = error"), "Z"),
        (query(SAYS), "Z"),
        (query(b"reset client_min_messages"), "Z"),
        (once(SAYS) + once(b"select 1") + once(SAYS) + SYNC + query(SAYS), "ZZ"),
    ],
    "notices between rows": [
        (
            query(
                b"begin; create function pg_temp.loud(n int) returns int language plpgsql as"
                b" $$ begin raise notice 'at %', n; return n; end $$"
            ),
            "Z",
        ),
        (query(b"select pg_temp.loud(n) from generate_series(1, 5) n"), "Z"),
        (once(b"select pg_temp.loud(n) from generate_series(1, 5) n") + SYNC, "Z"),
        (query(b"copy (select pg_temp.loud(n) from generate_series(1, 5) n) to stdout"), "Z"),
        (query(b"rollback"), "Z"),
    ],
    "settings are told in the middle": [
        (query(b"select 1; set application_name = 'one'; select 2; set timezone = 'Asia/Tokyo'; select 3"), "Z"),
        (query(TELLS), "Z"),
        (once(b"set application_name = 'two'") + once(b"show application_name") + SYNC, "Z"),
        (query(b"begin; set local application_name = 'three'"), "Z"),
        (query(b"rollback"), "Z"),
        (query(b"begin; set application_name = 'four'; select 1/0"), "Z"),
        (query(b"rollback"), "Z"),
        (query(b"show application_name; show timezone"), "Z"),
        (query(b"reset application_name; reset timezone"), "Z"),
        (query(b"show timezone"), "Z"),
    ],
    "empty things": [
        (SYNC + FLUSH + SYNC, "ZZ"),
        (query(b"") + query(b";") + query(b" -- nothing"), "ZZZ"),
        (once(b"") + once(b";") + SYNC, "Z"),
        (query(b"select") + once(b"select") + SYNC, "ZZ"),
        (query(b"select from generate_series(1, 3)"), "Z"),
        (query(b"select '', null"), "Z"),
    ],
    "not in the encoding": [(query(b"select '\xc3\x28'"), "Z"), (once(b"select $1::text", b"\xc3\x28") + SYNC, "Z")],
    **{f"in {encoding}": spoken(encoding, word) for encoding, word in WORDS.items()},
}
