"""Every encoding that Postgres has for clients: what is said in it passes as it is, octet by octet.

Some have characters whose second octet is a backslash, a bar or a letter. What they are is asked of Postgres itself, so
that all of its encodings are here, and those of its characters that another's tables might have differently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.fronts import Front
from behaviour.wire import lines, wires
from helpers.processes import gateway_process
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    SYNC_MESSAGE,
    bind,
    copy_data,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step
    from helpers.site import Site

SYNC: Final = SYNC_MESSAGE
WORDS: Final = {
    "BIG5": "功能表",
    "EUC_CN": "表示能力",
    "EUC_JIS_2004": "表示能力",
    "EUC_JP": "表示能力",
    "EUC_KR": "한국어",
    "EUC_TW": "功能表",
    "GB18030": "表示能力€",
    "GBK": "表示能力",
    "ISO_8859_5": "привет",
    "ISO_8859_6": "مرحبا",
    "ISO_8859_7": "γειά",
    "ISO_8859_8": "שלום",
    "JOHAB": "갸댜냸",
    "KOI8R": "привет",
    "KOI8U": "привіт",
    "LATIN1": "größer",
    "LATIN2": "źdźbło",
    "LATIN3": "ĥaĵo",
    "LATIN4": "ķēde",
    "LATIN5": "şöför",
    "LATIN6": "þjóð",
    "LATIN7": "ąžuolas",
    "LATIN8": "ŵyrŷon",
    "LATIN9": "œuvre €",
    "LATIN10": "țară",
    "SHIFT_JIS_2004": "表示能力",
    "SJIS": "表示能力",
    "SQL_ASCII": "größer",
    "UHC": "한국어",
    "UTF8": "größer €",
    "WIN1250": "źdźbło",
    "WIN1251": "привет",
    "WIN1252": "größer €",
    "WIN1253": "γειά",
    "WIN1254": "şöför",
    "WIN1255": "שלום",
    "WIN1256": "مرحبا",
    "WIN1257": "ķēde",
    "WIN1258": "đưađưa",
    "WIN866": "привет",
    "WIN874": "สวัสดี",
}
"""A word each, which Postgres takes for a name: of JOHAB it knows a part."""
IMPOSSIBLE: Final = {"MULE_INTERNAL"}
"""A database in UTF-8 cannot be spoken to in these."""
ALWAYS: Final = ("tcp", "quic")
LATER: Final = ("unix", "tls", "sidecar-unix")
THROUGH: Final = [*ALWAYS, *(pytest.param(front, marks=pytest.mark.long) for front in LATER)]

SPELT: Final = """
CREATE OR REPLACE FUNCTION spelt(code int, encoding name) RETURNS bytea LANGUAGE plpgsql AS
$$ BEGIN RETURN convert_to(chr(code), encoding); EXCEPTION WHEN OTHERS THEN RETURN ''; END $$
"""
RANGES: Final = ((161, 1800, 1), (8208, 8960, 3), (12288, 55200, 23))
"""Code points, of which each encoding has some: first, last, step."""


@pytest.fixture(scope="module")
def spelt(site: Site) -> Iterator[dict[str, tuple[bytes, bytes]]]:
    """By encoding: its word, and many of its characters, all in its own octets."""
    site.admin.execute(SPELT)
    codes = " UNION ALL ".join("SELECT generate_series({}, {}, {})".format(*each) for each in RANGES)
    spell = f"SELECT convert_to(%s, %s), string_agg(spelt(code, %s), '' ORDER BY code) FROM ({codes}) AS every (code)"
    try:
        yield {
            encoding: (word, every)
            for encoding, name in WORDS.items()
            for word, every in site.admin.rows(spell, name, encoding, encoding)
        }
    finally:
        site.admin.execute("DROP FUNCTION spelt")


def test_these_are_all_that_there_are(site: Site) -> None:
    known = site.admin.rows("SELECT pg_encoding_to_char(n) FROM generate_series(0, 100) n")
    assert {name for (name,) in known if name} == WORDS.keys() | IMPOSSIBLE


def once(sql: bytes, *values: bytes | None) -> bytes:
    return parse(b"", sql) + bind(b"", b"", values) + describe_portal(b"") + execute()


def conversation(table: str, encoding: str, word: bytes, every: bytes) -> list[Step]:
    """Wherever a text can be: in a query, a value, a name, a column, an error, a notice, a setting, and in COPY."""
    into = table.encode()
    return [
        (query(b"show client_encoding"), "Z"),
        (query(b"select '" + every + b"' as \"" + word + b"\", length('" + every + b"')"), "Z"),
        (query(b"select E'" + word + b"\\n" + word + b"' || $x$" + word + b"$x$ -- " + every), "Z"),
        (once(b"select $1::text, length($1), octet_length($1)", every) + SYNC, "Z"),
        (parse(word, b"select $1 || '" + word + b"'") + describe_statement(word) + SYNC, "Z"),
        (bind(word, word, [every]) + describe_portal(word) + execute(word) + SYNC, "Z"),
        (parse(word, b"select 1") + SYNC + bind(b"", word + b"x") + SYNC, "ZZ"),
        (query(b'select * from "' + word + b'"') + query(b"select '" + word), "ZZ"),
        (query(b"do $$ begin raise notice '%', '" + word + b"'; end $$"), "Z"),
        (query(b"set application_name = '" + word + b"'; show application_name"), "Z"),
        (query(b"copy " + into + b" from stdin"), "G"),
        (copy_data(every + b"\n" + word) + copy_data(b"\n") + COPY_DONE_MESSAGE, "Z"),
        (query(b"copy " + into + b" to stdout") + query(b"select * from " + into), "ZZ"),
        (query(b'prepare "' + word + b"\" as select '" + every + b"'; execute \"" + word + b'"'), "Z"),
        (query(b'execute "' + word + b'"; deallocate "' + word + b'"'), "Z"),
        (query(b"select '\xff\xfe\xfd'") + once(b"select $1::text", b"\xc3\x28") + SYNC, "ZZ"),
        (query(b"set client_encoding = 'UTF8'; show client_encoding"), "Z"),
        (bind(b"", word, [b"x"]) + execute() + SYNC, "Z"),
        (query(b"set client_encoding = '" + encoding.encode() + b"'; show client_encoding"), "Z"),
        (bind(b"", word, [every]) + execute() + SYNC, "Z"),
    ]


async def converse(front: Front, site: Site, encoding: str, table: str, steps: list[Step]) -> list[str]:
    site.admin.execute(f"DROP TABLE IF EXISTS {table}")
    site.admin.execute(f"CREATE TABLE {table} (x text)")
    site.admin.execute(f"GRANT ALL ON {table} TO PUBLIC")
    told = []
    async with wires(front) as wire:
        session = await wire.log_in(client_encoding=encoding)
        for at, (data, ends) in enumerate(steps):
            told.append(f"-- {at}")
            session.send(data)
            for end in ends:
                told += lines(await session.until(end))
        assert not session.is_lost.is_set()
    return told


@pytest.mark.parametrize("encoding", WORDS)
@pytest.mark.parametrize("through", THROUGH)
async def test_all_that_is_said_in_it_passes(
    site: Site,
    fronts: dict[str, Front],
    spelt: dict[str, tuple[bytes, bytes]],
    table: str,
    through: str,
    encoding: str,
) -> None:
    steps = conversation(table, encoding, *spelt[encoding])
    own = await converse(fronts["direct"], site, encoding, table, steps)
    assert len(own) > 3 * len(steps)
    assert await converse(fronts[through], site, encoding, table, steps) == own


@pytest.mark.parametrize("encoding", sorted(IMPOSSIBLE))
async def test_what_postgres_cannot_speak_to_this_database(fronts: dict[str, Front], encoding: str) -> None:
    told = []
    for front in ("direct", *ALWAYS):
        async with wires(fronts[front]) as wire:
            session = await wire.log_in()
            session.send(query(f"set client_encoding = '{encoding}'; select 1".encode()), query(b"select 2"))
            told.append(lines(await session.until_ready(2)))
    assert told == [told[0]] * 3
    assert told[0][0].startswith("ErrorResponse")


@pytest.fixture(scope="module")
def narrow(site: Site) -> Iterator[Front]:
    """A gateway with one backend."""
    with gateway_process(site, default_pool_size=1) as gateway:
        yield Front("127.0.0.1", gateway.port())


async def test_sessions_of_all_encodings_take_turns_on_one_backend(
    narrow: Front, spelt: dict[str, tuple[bytes, bytes]]
) -> None:
    async with wires(narrow) as wire:
        sessions = {encoding: await wire.log_in(client_encoding=encoding) for encoding in spelt}
        for encoding, session in sessions.items():
            word = spelt[encoding][0]
            # The same name, and for some the same octets, of which each means another text.
            assert await session.ask(parse(b"s", b"select '" + word + b"', $1 || '" + word + b"'"), SYNC) == "1ZI"
        for at in range(3):
            for encoding, session in sessions.items():
                word = spelt[encoding][0]
                session.send(query(b"select '" + word + b"'") + bind(b"", b"s", [word]) + execute() + SYNC)
            for encoding, session in sessions.items():
                own = spelt[encoding][0].decode("latin-1")
                rows = [line for line in lines(await session.until_ready(2)) if line.startswith("DataRow")]
                assert rows == [f"DataRow {own}", f"DataRow {own}, {own}{own}"], (at, encoding)
            await asyncio.sleep(0)
