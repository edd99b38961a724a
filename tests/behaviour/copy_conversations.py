"""Conversations about COPY, as in :mod:`behaviour.portal_conversations`. In and out, and what is odd about either.

"G" ends what comes before the data of COPY FROM STDIN. Where it is not waited for, the data come in the same flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    copy_data,
    copy_fail,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["COPIES"]

SYNC, FLUSH, DONE = SYNC_MESSAGE, FLUSH_MESSAGE, COPY_DONE_MESSAGE
COPY: Final = b"copy t from stdin"
OUT: Final = b"copy (select n from generate_series(1, 5) n) to stdout"
FAILING: Final = b"copy (select 1 / (n - 3) from generate_series(1, 5) n) to stdout"
COUNT: Step = (query(b"select count(*), sum(n) from t"), "Z")


def once(sql: bytes, limit: int = 0) -> bytes:
    return parse(b"", sql) + bind(b"", b"") + describe_portal(b"") + execute(b"", limit)


def rows(*numbers: int) -> bytes:
    return copy_data(b"".join(b"%d\n" % n for n in numbers))


COPIES: dict[str, list[Step]] = {
    "in": [(query(COPY), "G"), (rows(1, 2) + rows(3) + DONE, "Z"), COUNT],
    "in, nothing": [(query(COPY), "G"), (DONE, "Z"), (query(COPY), "G"), (copy_data(b"") + DONE, "Z"), COUNT],
    "in, a row in many messages": [
        (query(COPY), "G"),
        (copy_data(b"1") + copy_data(b"2") + copy_data(b"") + copy_data(b"3\n4") + copy_data(b"5") + DONE, "Z"),
        COUNT,
    ],
    "in, end of data in the data": [(query(COPY), "G"), (copy_data(b"1\n\\.\n") + copy_data(b"") + DONE, "Z"), COUNT],
    "in, csv": [(query(COPY + b" (format csv, header)"), "G"), (copy_data(b'n\n"1"\n2\n') + DONE, "Z"), COUNT],
    "in, binary": [
        (query(COPY + b" (format binary)"), "G"),
        (copy_data(b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\0\0\0\4\0\0\0\7" + b"\xff\xff") + DONE, "Z"),
        COUNT,
        (query(COPY + b" (format binary)"), "G"),
        (copy_data(b"no header at all"), "E"),
        (DONE + query(b"select 1"), "ZZ"),
    ],
    "in, large": [
        (query(COPY), "G"),
        (copy_data(b"12\n" * 100_000) + DONE, "Z"),
        COUNT,
        (query(COPY), "G"),
        (copy_data(b"12\n" * 100_000 + b"x\n") + DONE, "Z"),
        COUNT,
    ],
    "in, with notices": [
        (
            query(
                b"create or replace function pg_temp.says() returns trigger language plpgsql as $$ begin"
                b" raise notice 'row %', new.n; return new; end $$; begin;"
                b" create trigger says before insert on t for each row execute function pg_temp.says()"
            ),
            "Z",
        ),
        (query(COPY), "G"),
        (rows(1, 2, 3) + DONE, "Z"),
        (once(COPY) + SYNC, "G"),
        (rows(4) + DONE + SYNC, "Z"),
        (query(b"rollback; discard temp"), "Z"),
        COUNT,
    ],
    "in, wrong before the end": [
        (query(COPY), "G"),
        (copy_data(b"x\n"), "EZ"),
        (rows(1) + rows(2), ""),
        (DONE, ""),
        COUNT,
    ],
    "in, wrong at the end": [(query(COPY), "G"), (rows(1) + copy_data(b"2\t3\n") + DONE, "Z"), COUNT],
    "in, wrong after the end": [
        (query(b"begin; create unique index t_n on t (n); commit"), "Z"),
        (query(COPY), "G"),
        (rows(1, 1) + DONE, "Z"),
        (query(b"drop index t_n; alter table t add constraint t_u unique (n) deferrable initially deferred"), "Z"),
        (query(COPY), "G"),
        (rows(1, 1) + DONE, "Z"),
        (once(COPY) + SYNC, "G"),
        (rows(2, 2) + DONE + SYNC, "Z"),
        (query(b"alter table t drop constraint t_u"), "Z"),
        COUNT,
    ],
    "in, refused at once": [
        (query(b"copy nowhere from stdin") + rows(1) + DONE + query(b"select 1"), "ZZ"),
        (query(b"copy t (m) from stdin"), "Z"),
        (query(b"selec; copy t from stdin") + rows(1) + DONE, "Z"),
        (once(b"copy nowhere from stdin") + SYNC + rows(1) + DONE + SYNC, "ZZ"),
        COUNT,
    ],
    "in, given up": [
        (query(COPY), "G"),
        (rows(1) + copy_fail(b"enough"), "Z"),
        (query(COPY), "G"),
        (copy_fail("genug, größer".encode()) + query(b"select 1"), "ZZ"),
        (query(COPY), "G"),
        (copy_fail(b"") + copy_fail(b"again") + DONE, "Z"),
        COUNT,
    ],
    "in, given up in the middle of a row": [(query(COPY), "G"), (copy_data(b"12") + copy_fail(b"oops"), "Z"), COUNT],
    "in, at once": [
        (query(COPY) + rows(1, 2) + DONE, "Z"),
        (query(COPY) + rows(3) + DONE + query(COPY) + rows(4) + DONE + query(b"select 1"), "ZZZ"),
        (query(COPY) + copy_fail(b"no") + query(b"select 1"), "ZZ"),
        COUNT,
    ],
    "in, several in one query": [
        (query(COPY + b";" + COPY + b"; select 1"), "G"),
        (rows(1) + DONE, "G"),
        (rows(2) + DONE, "Z"),
        (query(COPY + b";" + OUT + b";" + COPY), "G"),
        (rows(3) + DONE, "G"),
        (copy_fail(b"not this one"), "Z"),
        COUNT,
    ],
    "in, in a transaction": [
        (query(b"begin"), "Z"),
        (query(COPY), "G"),
        (rows(1) + DONE, "Z"),
        COUNT,
        (query(COPY), "G"),
        (copy_data(b"x\n") + DONE, "Z"),
        (query(COPY), "Z"),
        (query(b"rollback"), "Z"),
        COUNT,
    ],
    "in, after a savepoint": [
        (query(b"begin; savepoint a"), "Z"),
        (query(COPY), "G"),
        (copy_fail(b"no"), "Z"),
        (query(b"rollback to a"), "Z"),
        (query(COPY), "G"),
        (rows(5) + DONE, "Z"),
        (query(b"commit"), "Z"),
        COUNT,
    ],
    "in, extended": [
        (once(COPY) + SYNC, "G"),
        (rows(1) + rows(2) + DONE + SYNC, "Z"),
        (once(COPY) + FLUSH, "G"),
        (rows(3) + DONE + SYNC, "Z"),
        (once(COPY, 1) + SYNC, "G"),
        (rows(4, 5) + DONE + SYNC, "Z"),
        COUNT,
    ],
    "in, prepared": [
        (parse(b"c", COPY) + describe_statement(b"c") + SYNC, "Z"),
        (bind(b"", b"c") + execute() + SYNC, "G"),
        (rows(1) + DONE + SYNC, "Z"),
        (bind(b"", b"c") + execute() + SYNC, "G"),
        (copy_fail(b"enough") + SYNC, "Z"),
        (bind(b"p", b"c") + execute(b"p") + FLUSH, "G"),
        (rows(2) + DONE + SYNC, "Z"),
        COUNT,
    ],
    "in, extended, at once": [
        (once(COPY) + rows(1) + DONE + SYNC, "Z"),
        (once(COPY) + SYNC + rows(2) + DONE + SYNC, "Z"),
        (once(COPY) + copy_data(b"x\n") + DONE + SYNC, "Z"),
        (once(COPY) + copy_fail(b"no") + SYNC, "Z"),
        COUNT,
    ],
    "in, inside a pipeline": [
        (once(b"select 1") + once(COPY) + rows(1) + DONE + once(b"select count(*) from t") + SYNC, "Z"),
        (once(b"select 1") + SYNC + once(COPY) + rows(2) + DONE + SYNC + once(b"select 2") + SYNC, "ZZZ"),
        (once(COPY) + copy_data(b"x\n") + DONE + once(b"select 3") + SYNC + once(b"select 4") + SYNC, "ZZ"),
        (once(COPY) + copy_fail(b"no") + once(b"select 3") + SYNC + query(b"select 4"), "ZZ"),
        (parse(b"c", COPY) + SYNC + bind(b"", b"c") + execute() + rows(3) + DONE + SYNC, "ZZ"),
        COUNT,
    ],
    "in, Syncs too early": [
        (once(COPY) + SYNC + SYNC + SYNC, "G"),
        (SYNC + rows(1) + SYNC + FLUSH + rows(2) + SYNC, ""),
        (DONE + SYNC, "Z"),
        (query(COPY) + SYNC, "G"),
        (SYNC + rows(3) + DONE, "Z"),
        COUNT,
    ],
    "in, wrong, and then all kinds of things": [
        (once(COPY) + SYNC, "G"),
        (copy_data(b"x\n"), "E"),
        (rows(1) + FLUSH + rows(2) + DONE + once(b"select 1"), ""),
        (SYNC, "Z"),
        (query(COPY), "G"),
        (copy_data(b"x\n"), "EZ"),
        (rows(1) + copy_fail(b"x") + SYNC + query(b"select 1"), "ZZ"),
        COUNT,
    ],
    "in, another message in the middle": [
        (query(COPY), "G"),
        # Then Postgres closes the connection.
        (rows(1) + parse(b"", b"select 1"), "EZ"),
    ],
    "out": [
        (query(OUT), "Z"),
        (query(b"copy t to stdout"), "Z"),
        (query(OUT + b" (format csv, header)"), "Z"),
        (query(OUT + b" (format binary)"), "Z"),
        (query(OUT + b";" + OUT), "Z"),
        (query(OUT) + query(b"select 1"), "ZZ"),
    ],
    "out, extended": [
        (once(OUT) + SYNC, "Z"),
        (once(OUT, 2) + SYNC, "Z"),
        (parse(b"o", OUT) + describe_statement(b"o") + SYNC, "Z"),
        (bind(b"", b"o") + execute() + bind(b"", b"o") + execute() + SYNC, "Z"),
        (once(OUT) + once(b"select 1") + SYNC + once(OUT) + SYNC, "ZZ"),
        (once(OUT) + FLUSH, "C"),
        (SYNC, "Z"),
    ],
    "out, wrong in the middle": [
        (query(FAILING), "Z"),
        (once(FAILING) + once(b"select 1") + SYNC, "Z"),
        (query(FAILING) + query(b"select 1"), "ZZ"),
        (query(b"begin"), "Z"),
        (query(FAILING), "Z"),
        (query(OUT), "Z"),
        (query(b"rollback"), "Z"),
    ],
    "out, with data from the client": [(query(OUT) + rows(1) + DONE + query(b"select 1"), "ZZ"), COUNT],
    "out, large rows": [
        (query(b"copy (select repeat('x', 200000) from generate_series(1, 3)) to stdout"), "Z"),
        (once(b"copy (select repeat('x', 200000) from generate_series(1, 3)) to stdout") + SYNC, "Z"),
    ],
    "both ways by turns": [
        (query(COPY), "G"),
        (rows(1, 2) + DONE, "Z"),
        (query(b"copy t to stdout;" + COPY + b"; copy t to stdout"), "G"),
        (rows(3) + DONE, "Z"),
        (once(COPY) + rows(4) + DONE + once(b"copy t to stdout") + SYNC, "Z"),
        COUNT,
    ],
}
