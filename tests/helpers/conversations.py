"""Conversations of a client with Postgres, as steps: what is written at once, before the answers are read.

Each is held against a PostgreSQL, the model of one, and the gateway before several backends. Those that read tables use
``t``, of one integer column.
"""

from __future__ import annotations

from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_portal,
    close_statement,
    copy_data,
    copy_fail,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

__all__ = ["CONVERSATIONS", "FLUSH", "MALFORMED", "SYNC", "roughly", "run"]

SYNC, FLUSH, DONE = SYNC_MESSAGE, FLUSH_MESSAGE, COPY_DONE_MESSAGE


def run(statement: bytes = b"", *values: bytes | None) -> bytes:
    """Bind and Execute of the unnamed portal."""
    return bind(b"", statement, values) + execute()


def once(sql: bytes, *values: bytes | None) -> bytes:
    """The unnamed statement, parsed and run: what libpq's PQexecParams sends."""
    return parse(b"", sql) + bind(b"", b"", values) + describe_portal(b"") + execute()


COPY = b"copy t from stdin"
ONE, TEXT = b"select $1::int", b"select $1::text"
COUNT = query(b"select count(*) from t")

CONVERSATIONS: dict[str, list[bytes]] = {
    "simple": [
        query(b"select 1"),
        query(b"select 1; select 'x'"),
        query(b""),
        query(b"selec"),
        query(b"select 1; selec"),
    ],
    "simple transaction": [
        query(b"begin"),
        query(b"insert into t values (1)"),
        COUNT,
        query(b"rollback"),
        COUNT,
        query(b"begin; insert into t values (2); commit"),
        COUNT,
    ],
    "failed transaction": [
        query(b"begin"),
        query(b"select 1/0"),
        query(b"select 1"),
        query(b"commit"),
        query(b"select 1"),
    ],
    "warnings": [query(b"commit"), query(b"begin"), query(b"begin"), query(b"rollback"), query(b"rollback")],
    "several commands fail together": [query(b"insert into t values (1); select 1/0"), COUNT],
    "once": [once(b"select 1") + SYNC, once(TEXT, b"x") + SYNC, once(TEXT, None) + SYNC, once(b"") + SYNC],
    "once, failing": [once(b"selec") + SYNC, once(b"select 1/0") + SYNC, once(b"select 1/(random()*0)::int") + SYNC],
    "asyncpg": [
        parse(b"__s1__", ONE) + describe_statement(b"__s1__") + FLUSH,
        run(b"__s1__", b"5") + SYNC,
        run(b"__s1__", b"6") + SYNC,
        bind(b"", b"__s1__", [b"7"]) + execute(b"", 1) + SYNC,
        close_statement(b"__s1__") + SYNC,
        run(b"__s1__", b"8") + SYNC,
    ],
    "asyncpg, failing": [
        parse(b"__s1__", b"selec") + describe_statement(b"__s1__") + FLUSH,
        SYNC,
        parse(b"__s1__", b"select 1") + describe_statement(b"__s1__") + FLUSH,
        run(b"__s1__") + SYNC,
    ],
    "asyncpg in a transaction": [
        query(b"begin"),
        parse(b"s", ONE) + describe_statement(b"s") + FLUSH,
        run(b"s", b"5") + SYNC,
        query(b"rollback"),
        run(b"s", b"5") + SYNC,
    ],
    "pgbench": [
        parse(b"P_0", ONE) + SYNC,
        bind(b"", b"P_0", [b"1"]) + describe_portal(b"") + execute() + SYNC,
        bind(b"", b"P_0", [b"2"]) + describe_portal(b"") + execute() + SYNC,
    ],
    "two names for one statement": [
        parse(b"a", ONE) + SYNC,
        parse(b"b", ONE) + SYNC,
        run(b"a", b"1") + run(b"b", b"2") + SYNC,
        close_statement(b"a") + SYNC,
        run(b"b", b"3") + SYNC,
        run(b"a", b"3") + SYNC,
    ],
    "duplicate name": [
        parse(b"s", ONE) + SYNC,
        parse(b"s", TEXT) + SYNC,
        parse(b"s", b"selec") + SYNC,
        run(b"s", b"1") + SYNC,
        close_statement(b"s") + parse(b"s", TEXT) + SYNC,
        run(b"s", b"x") + SYNC,
    ],
    "duplicate names in a pipeline": [
        parse(b"s", ONE) + parse(b"s", TEXT) + parse(b"s", b"select 1") + SYNC + run(b"s", b"1") + SYNC,
        parse(b"s", b"select 1") + SYNC + parse(b"s", TEXT) + run(b"s", b"x") + SYNC + run(b"s", b"2") + SYNC,
        close_statement(b"s") + parse(b"s", TEXT) + SYNC + run(b"s", b"x") + SYNC,
        parse(b"s", b"selec") + SYNC + run(b"s", b"y") + SYNC,
    ],
    "failed parse frees the name": [parse(b"s", b"selec") + SYNC, parse(b"s", b"select 1") + SYNC, run(b"s") + SYNC],
    "skipped parse frees the name": [
        run(b"no") + parse(b"s", ONE) + SYNC,
        run(b"s", b"1") + SYNC,
        parse(b"s", TEXT) + SYNC,
        run(b"s", b"x") + SYNC,
    ],
    "skipped parse of a known text frees the name": [
        parse(b"a", ONE) + SYNC,
        run(b"no") + parse(b"s", ONE) + SYNC,
        run(b"s", b"1") + SYNC,
        parse(b"s", TEXT) + SYNC,
        run(b"s", b"x") + SYNC,
    ],
    "skipped close keeps the name": [
        parse(b"s", ONE) + SYNC,
        run(b"no") + close_statement(b"s") + SYNC,
        run(b"s", b"1") + SYNC,
        parse(b"s", ONE) + SYNC,
    ],
    "unknown names": [
        run(b"no") + SYNC,
        describe_statement(b"no") + SYNC,
        describe_portal(b"no") + SYNC,
        execute(b"no") + SYNC,
        close_statement(b"no") + close_portal(b"no") + SYNC,
        describe_statement(b"no") + FLUSH,
        SYNC,
    ],
    "wrong number of parameters": [parse(b"s", ONE) + SYNC, run(b"s") + SYNC, run(b"s", b"1", b"2") + SYNC],
    "unnamed later": [
        parse(b"", ONE) + SYNC,
        run(b"", b"1") + SYNC,
        run(b"", b"2") + SYNC,
        describe_statement(b"") + SYNC,
        parse(b"", TEXT) + SYNC,
        run(b"", b"x") + SYNC,
        close_statement(b"") + SYNC,
        run(b"", b"x") + SYNC,
    ],
    "a query drops the unnamed": [parse(b"", ONE) + SYNC, query(b"select 1"), run(b"", b"1") + SYNC],
    "a query drops the unnamed portal": [
        query(b"begin"),
        parse(b"", ONE) + bind(b"", b"", [b"1"]) + SYNC,
        query(b"select 2"),
        execute() + SYNC,
        query(b"rollback"),
    ],
    "a skipped unnamed keeps the old one": [
        parse(b"", ONE) + SYNC,
        run(b"no") + parse(b"", TEXT) + SYNC,
        run(b"", b"1") + SYNC,
        run(b"no") + close_statement(b"") + SYNC,
        run(b"", b"2") + SYNC,
    ],
    "a failed unnamed drops the old one": [
        parse(b"", ONE) + SYNC,
        bind(b"p", b"", [b"1"]) + parse(b"", b"selec") + SYNC,
        run(b"", b"1") + SYNC,
    ],
    "a skipped query": [run(b"no") + query(b"insert into t values (1)") + SYNC, COUNT],
    "a query that comes after the error": [run(b"no") + FLUSH, query(b"select 1"), SYNC, query(b"select 2")],
    "a query inside a batch": [
        parse(b"s", b"insert into t values (1)") + run(b"s") + query(b"select 5") + run(b"no") + SYNC,
        COUNT,
        parse(b"s2", ONE) + query(b"select 6") + SYNC,
        run(b"s2", b"4") + SYNC,
    ],
    "a batch is one transaction": [
        once(b"insert into t values (1)") + once(b"insert into t values (2)") + once(b"select 1/0") + SYNC,
        COUNT,
        once(b"insert into t values (1)") + once(b"insert into t values (2)") + SYNC,
        COUNT,
    ],
    "a batch in pieces": [
        parse(b"", b"insert into t values (1)"),
        bind(b"", b""),
        execute(),
        FLUSH,
        once(b"select count(*) from t") + FLUSH,
        once(b"select 1/0"),
        FLUSH,
        once(b"select 1"),
        SYNC,
        COUNT,
    ],
    "transaction in the extended protocol": [
        once(b"begin") + SYNC,
        once(b"insert into t values (1)") + SYNC,
        once(b"select 1/0") + SYNC,
        once(b"select 1") + SYNC,
        once(b"rollback") + SYNC,
        once(b"select count(*) from t") + SYNC,
        once(b"begin") + once(b"insert into t values (1)") + once(b"commit") + SYNC,
        once(b"select count(*) from t") + SYNC,
    ],
    "pipeline": [
        once(b"select 1") + SYNC + once(b"select 1/0") + once(b"select 2") + SYNC + once(b"select 3") + SYNC,
        query(b"select 4") + query(b"select 1/0") + query(b"select 5"),
        SYNC + SYNC + query(b"select 6") + SYNC,
    ],
    "pipeline of one new statement": [
        parse(b"s", ONE) + run(b"s", b"1") + SYNC + run(b"s", b"2") + SYNC + describe_statement(b"s") + SYNC,
        run(b"s", b"3") + SYNC,
    ],
    "pipeline with errors between known statements": [
        parse(b"a", ONE) + parse(b"b", TEXT) + SYNC,
        run(b"a", b"1") + run(b"no") + run(b"b", b"x") + SYNC + run(b"b", b"y") + run(b"a", b"2") + SYNC,
    ],
    "portals": [
        query(b"begin"),
        parse(b"s", b"select generate_series(1, 5)") + bind(b"p", b"s") + execute(b"p", 2) + SYNC,
        execute(b"p", 2) + SYNC,
        describe_portal(b"p") + execute(b"p", 0) + SYNC,
        execute(b"p", 1) + SYNC,
        bind(b"p", b"s") + SYNC,
        query(b"rollback"),
        execute(b"p") + SYNC,
    ],
    "portals end with the batch": [
        parse(b"s", b"select generate_series(1, 5)") + bind(b"p", b"s") + execute(b"p", 2) + FLUSH,
        execute(b"p", 2) + close_portal(b"p") + SYNC,
        execute(b"p", 2) + SYNC,
    ],
    "a whole portal at its limit": [
        parse(b"s", ONE) + bind(b"", b"s", [b"1"]) + execute(b"", 1) + execute(b"", 1) + SYNC
    ],
    "a command runs once": [
        parse(b"", b"insert into t values (1)") + bind(b"", b"") + execute() + execute() + SYNC,
        COUNT,
    ],
    "settings": [
        query(b"set timezone = 'Europe/Berlin'"),
        query(b"show timezone"),
        once(b"set application_name = 'x'") + SYNC,
        query(b"begin"),
        query(b"set timezone = 'UTC'"),
        query(b"select 1/0"),
        query(b"rollback"),
        query(b"show timezone"),
        query(b"set timezone = 'Asia/Tokyo'; set local timezone = 'Asia/Tokyo'; reset timezone"),
        query(b"show timezone"),
        query(b"set timezone = 'UTC'; select 1/0"),
        query(b"set datestyle = 'foo'"),
        query(b"set datestyle = 'german'"),
        query(b"show datestyle"),
        query(b"discard all"),
        query(b"show timezone"),
    ],
    "deallocate all": [
        parse(b"s", ONE) + parse(b"", TEXT) + SYNC,
        once(b"deallocate all") + SYNC,
        run(b"s", b"1") + SYNC,
        parse(b"s", TEXT) + SYNC,
        query(b"discard all"),
        parse(b"s", ONE) + SYNC,
        run(b"s", b"1") + SYNC,
    ],
    "deallocate all in a pipeline": [
        parse(b"s", ONE) + run(b"s", b"1") + parse(b"d", b"deallocate all") + run(b"d") + parse(b"s", TEXT) + SYNC,
        run(b"s", b"x") + SYNC,
        query(b"deallocate all") + parse(b"r", b"select 7") + SYNC + run(b"r") + SYNC,
        run(b"r") + SYNC,
        run(b"s", b"x") + SYNC,
    ],
    "notice": [
        query(b"do $$ begin raise notice 'hello'; end $$"),
        once(b"do $$ begin raise notice 'hello'; end $$") + SYNC,
    ],
    "copy out": [query(COPY), copy_data(b"1\n2\n"), DONE, query(b"copy t to stdout"), once(b"copy t to stdout") + SYNC],
    "copy in": [query(COPY), copy_data(b"1\n2"), copy_data(b"\n3\n") + DONE, COUNT],
    "copy in, at once": [query(COPY) + copy_data(b"1\n") + DONE + query(b"select 1"), COUNT],
    "copy in twice": [query(COPY + b"; " + COPY), copy_data(b"1\n") + DONE, copy_data(b"2\n") + DONE, COUNT],
    "copy in, given up": [query(COPY), copy_data(b"1\n") + copy_fail(b"enough"), COUNT],
    "copy in, failing": [query(COPY), copy_data(b"x\n"), copy_data(b"1\n"), DONE, COUNT],
    "copy in, failing, at once": [query(COPY) + copy_data(b"x\n") + DONE + query(b"select 1"), COUNT],
    "copy in, extended": [
        once(COPY) + SYNC,
        copy_data(b"1\n"),
        DONE,
        SYNC,
        COUNT,
    ],
    "copy in, extended, from a statement": [
        parse(b"s", COPY) + SYNC,
        run(b"s") + SYNC,
        copy_data(b"1\n") + DONE + SYNC,
        run(b"s") + SYNC,
        copy_data(b"2\n") + DONE,
        SYNC,
        COUNT,
    ],
    "copy in, extended, without an early sync": [once(COPY) + FLUSH, copy_data(b"1\n") + DONE + SYNC, COUNT],
    "copy in, extended, syncs in plenty": [
        once(COPY) + SYNC + SYNC,
        SYNC + copy_data(b"1\n") + SYNC + FLUSH,
        DONE + SYNC + SYNC,
        COUNT,
    ],
    "copy in, extended, at once": [once(COPY) + SYNC + copy_data(b"1\n") + DONE + SYNC, COUNT],
    "copy in, extended, failing": [
        once(COPY) + SYNC,
        copy_data(b"x\n"),
        copy_data(b"1\n"),
        DONE,
        SYNC,
        COUNT,
    ],
    "copy in, extended, given up": [once(COPY) + SYNC, copy_fail(b"enough"), SYNC, COUNT],
    "copy in, simple, early syncs": [query(COPY) + SYNC, SYNC + copy_data(b"1\n") + DONE, SYNC, COUNT],
    "copy in, inside a transaction": [
        query(b"begin"),
        once(COPY) + SYNC,
        copy_data(b"1\n") + DONE,
        SYNC,
        query(b"rollback"),
        COUNT,
    ],
    "late copy data": [copy_data(b"1\n"), DONE + query(b"select 1"), copy_data(b"1\n") + SYNC, copy_fail(b"no"), COUNT],
    "something else in copy": [query(COPY), query(b"select 1")],
    "function call": [encode(b"F", b"\0\0\0\0\0\0\0\0\0\0"), run(b"no") + encode(b"F", b"\0\0\0\0\0\0\0\0\0\0") + SYNC],
}

MALFORMED = [
    encode(b"P"),
    encode(b"P", b"name"),
    encode(b"P", b"name\0select 1"),
    encode(b"P", b"name\0select 1\0"),
    encode(b"P", b"name\0select 1\0\0\1"),
    encode(b"P", b"name\0select 1\0\0\0more"),
    encode(b"B"),
    encode(b"B", b"portal"),
    encode(b"B", b"portal\0s"),
    encode(b"B", b"portal\0s\0"),
    encode(b"B", b"\0s\0\0\0\0\1\0\0\0\7x\0\0"),
    encode(b"D"),
    encode(b"D", b"S"),
    encode(b"D", b"Ss"),
    encode(b"D", b"Ss\0more"),
    encode(b"D", b"xs\0"),
    encode(b"C"),
    encode(b"C", b"Ss"),
    encode(b"C", b"xs\0"),
    encode(b"E"),
    encode(b"E", b"\0\0"),
    encode(b"Q"),
    encode(b"Q", b"select 1"),
    encode(b"Q", b"select 1\0select 2\0"),
    encode(b"S", b"more"),
    encode(b"H", b"more"),
    encode(b"F"),
]
"""Messages without the layout that they should have. What is in step stays in step."""


def roughly(lines: list[str]) -> list[str]:
    """A transcript without the words that say what is wrong with a message."""
    return [line[: line.index("08P01") + 5] if " 08P01 " in line else line for line in lines]
