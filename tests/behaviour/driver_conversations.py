"""How drivers speak, as in :mod:`behaviour.portal_conversations`: what each writes at once, and what it waits for.

From what they send: libpq and psycopg 3, asyncpg, pgjdbc, Npgsql, pgx, tokio-postgres, and pgbench.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from behaviour.statement_conversations import batch, once, run, said
from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_portal,
    close_statement,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["DRIVERS"]

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
ONE: Final = b"select $1::int"
SERIES: Final = b"select generate_series(1, 5)"


def prepares(name: bytes, sql: bytes) -> Step:
    """With Sync, as libpq's PQprepare does."""
    return parse(name, sql) + SYNC, "Z"


def asks(name: bytes, sql: bytes, ends: str = "T") -> Step:
    """With Flush, as asyncpg does."""
    return parse(name, sql) + describe_statement(name) + FLUSH, ends


DRIVERS: Final[dict[str, list[Step]]] = {
    "asyncpg": [
        asks(b"__asyncpg_stmt_1__", ONE),
        batch(bind(b"", b"__asyncpg_stmt_1__", [b"\0\0\0\7"], binary=True), execute()),
        batch(bind(b"", b"__asyncpg_stmt_1__", [b"\0\0\0\x08"], binary=True), execute(b"", 1)),
        said(b"BEGIN;"),
        asks(b"__asyncpg_stmt_2__", b"insert into t values ($1)", "n"),
        batch(bind(b"", b"__asyncpg_stmt_2__", [b"\0\0\0\7"], binary=True), execute()),
        said(b"SAVEPOINT __asyncpg_savepoint_1__;"),
        asks(b"__asyncpg_stmt_3__", b"select * from nowhere", "E"),
        (SYNC, "Z"),
        said(b"ROLLBACK TO __asyncpg_savepoint_1__;"),
        said(b"COMMIT;"),
        batch(close_statement(b"__asyncpg_stmt_1__")),
        said(b"SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;"),
        batch(bind(b"", b"__asyncpg_stmt_2__", [b"\0\0\0\x08"], binary=True), execute()),
        said(b"select count(*) from t"),
    ],
    "asyncpg's cursors and many": [
        said(b"BEGIN;"),
        asks(b"__asyncpg_stmt_1__", SERIES),
        batch(bind(b"__asyncpg_portal_2__", b"__asyncpg_stmt_1__"), execute(b"__asyncpg_portal_2__", 2)),
        batch(execute(b"__asyncpg_portal_2__", 2)),
        batch(execute(b"__asyncpg_portal_2__", 2)),
        batch(close_portal(b"__asyncpg_portal_2__")),
        said(b"COMMIT;"),
        asks(b"__asyncpg_stmt_3__", b"insert into t values ($1)", "n"),
        batch(*(bind(b"", b"__asyncpg_stmt_3__", [b"%d" % n]) + execute() for n in range(100))),
        said(b"select count(*) from t"),
    ],
    "psycopg": [
        said(b"BEGIN"),
        batch(parse(b"", ONE), bind(b"", b"", [b"1"]), describe_portal(b""), execute()),
        said(b"COMMIT"),
        *(batch(once(ONE, b"%d" % n)) for n in range(3)),
        prepares(b"_pg3_0", ONE),
        batch(run(b"_pg3_0", b"1")),
        said(b"BEGIN"),
        said(b'SAVEPOINT "_pg3_1"'),
        batch(run(b"_pg3_0", b"x")),
        said(b'ROLLBACK TO "_pg3_1"; RELEASE "_pg3_1"'),
        batch(run(b"_pg3_0", b"2")),
        said(b"ROLLBACK"),
        batch(close_statement(b"_pg3_0")),
        said(b"DEALLOCATE ALL"),
    ],
    "psycopg's pipeline": [
        (once(b"BEGIN") + once(ONE, b"1") + once(ONE, b"2") + once(b"COMMIT") + SYNC, "Z"),
        (once(b"BEGIN") + once(ONE, b"x") + once(ONE, b"2") + once(b"COMMIT") + SYNC, "Z"),
        (once(b"ROLLBACK") + SYNC, "Z"),
        (parse(b"_pg3_0", ONE) + run(b"_pg3_0", b"1") + run(b"_pg3_0", b"2") + SYNC, "Z"),
        (run(b"_pg3_0", b"3") + SYNC + run(b"_pg3_0", b"4") + FLUSH + SYNC, "ZZ"),
    ],
    "pgjdbc": [
        (once(b"SET extra_float_digits = 3") + SYNC, "Z"),
        (once(b"SET application_name = 'PostgreSQL JDBC Driver'") + SYNC, "Z"),
        *((once(ONE, b"1") + SYNC, "Z") for _ in range(4)),
        (parse(b"S_1", ONE) + describe_statement(b"S_1") + run(b"S_1", b"5") + SYNC, "Z"),
        (run(b"S_1", b"6") + SYNC, "Z"),
        (
            parse(b"S_2", b"BEGIN")
            + bind(b"", b"S_2")
            + execute()
            + parse(b"S_3", SERIES)
            + bind(b"C_4", b"S_3")
            + describe_portal(b"C_4")
            + execute(b"C_4", 2)
            + SYNC,
            "Z",
        ),
        (execute(b"C_4", 2) + SYNC, "Z"),
        (close_portal(b"C_4") + parse(b"S_5", b"COMMIT") + bind(b"", b"S_5") + execute() + SYNC, "Z"),
        (bind(b"", b"S_2") + execute() + run(b"S_1", b"x") + SYNC, "Z"),
        (parse(b"S_6", b"ROLLBACK") + bind(b"", b"S_6") + execute() + SYNC, "Z"),
        (close_statement(b"S_1") + bind(b"", b"S_3") + execute(b"", 1) + SYNC, "Z"),
    ],
    "Npgsql": [
        (
            parse(b"_p1", ONE) + describe_statement(b"_p1") + parse(b"_p2", SERIES) + describe_statement(b"_p2") + SYNC,
            "Z",
        ),
        (run(b"_p1", b"1") + run(b"_p2") + SYNC, "Z"),
        (query(b"BEGIN") + run(b"_p1", b"2") + SYNC, "ZZ"),
        (once(b"select 1") + close_statement(b"_p2") + SYNC + query(b"COMMIT"), "ZZ"),
        (query(b"DISCARD ALL") + once(ONE, b"3") + SYNC, "ZZ"),
        (query(b"ROLLBACK;DISCARD ALL"), "Z"),
        batch(run(b"_p1", b"4")),
    ],
    "pgx": [
        (parse(b"stmtcache_1", ONE) + describe_statement(b"stmtcache_1") + SYNC, "Z"),
        (bind(b"", b"stmtcache_1", [b"\0\0\0\1"], binary=True) + describe_portal(b"") + execute() + SYNC, "Z"),
        (query(b"begin isolation level repeatable read"), "Z"),
        (bind(b"", b"stmtcache_1", [b"\0\0\0\2"], binary=True) + describe_portal(b"") + execute() + SYNC, "Z"),
        (parse(b"", b"selec") + describe_statement(b"") + SYNC, "Z"),
        (query(b"rollback"), "Z"),
        (query(b"-- ping"), "Z"),
        (run(b"stmtcache_1", b"3") + run(b"stmtcache_1", b"4") + run(b"stmtcache_1", b"5") + SYNC, "Z"),
        (close_statement(b"stmtcache_1") + SYNC, "Z"),
    ],
    "tokio-postgres": [
        (parse(b"s0", ONE) + describe_statement(b"s0") + SYNC, "Z"),
        (parse(b"s1", SERIES) + describe_statement(b"s1") + SYNC + bind(b"", b"s0", [b"1"]) + execute() + SYNC, "ZZ"),
        (query(b"START TRANSACTION") + bind(b"p2", b"s1") + SYNC, "ZZ"),
        (execute(b"p2", 2) + SYNC, "Z"),
        (execute(b"p2", 9) + SYNC + close_portal(b"p2") + SYNC, "ZZ"),
        (query(b"COMMIT") + close_statement(b"s1") + SYNC, "ZZ"),
        (bind(b"", b"s0", [b"2"]) + execute() + SYNC, "Z"),
    ],
    "libpq's PQexec and its like": [
        said(b"select 1; select 2"),
        (once(b"select $1::text", b"x") + SYNC, "Z"),
        prepares(b"", ONE),
        (bind(b"", b"", [b"1"]) + describe_portal(b"") + execute() + SYNC, "Z"),
        (describe_statement(b"") + SYNC, "Z"),
        said(b"begin; declare c cursor for " + SERIES),
        (describe_portal(b"c") + SYNC, "Z"),
        said(b"fetch 2 from c"),
        said(b"close c; commit"),
        (close_portal(b"c") + SYNC, "Z"),
    ],
}
