"""Conversations about what each message is refused for, and about pipelines, as in
:mod:`behaviour.portal_conversations`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from behaviour.portal_conversations import PLUS, call
from behaviour.statement_conversations import batch, once, run, said
from pgtrunk.wire.framing import encode, field
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

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["MESSAGES", "PIPELINES"]

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
BEGIN, COMMIT, ROLLBACK = said(b"begin"), said(b"commit"), said(b"rollback")
AFTER: Final = said(b"select 'after'")
ONE, TEXT = b"select $1::int", b"select $1::text"
SERIES: Final = b"select generate_series(1, 4)"
INT, TEXTS = 23, 25
"""OIDs of types."""


def bound(statement: bytes, formats: list[int], values: list[bytes | None], results: list[int]) -> bytes:
    """A Bind with these format codes."""
    head = b"\0" + statement + b"\0" + struct.pack(f"!h{len(formats)}h", len(formats), *formats)
    tail = struct.pack(f"!h{len(results)}h", len(results), *results)
    return encode(b"B", head + struct.pack("!h", len(values)) + b"".join(map(field, values)) + tail)


def each(*messages: bytes) -> list[Step]:
    """Each of them by itself, then in a transaction, then between others."""
    steps: list[Step] = []
    for message in messages:
        steps += [batch(message), AFTER, BEGIN, batch(message), AFTER, ROLLBACK]
        steps.append((once(b"select 1") + message + once(b"select 2") + SYNC + query(b"select 3"), "ZZ"))
    return steps


MESSAGES: Final[dict[str, list[Step]]] = {
    "Parse is refused": each(
        parse(b"", b"selec"),
        parse(b"s", b"selec"),
        parse(b"s", b"select * from nowhere"),
        parse(b"s", b"select 1; select 2"),
        parse(b"", b"select $1"),
        parse(b"", b"select $1 + $2", [INT]),
        parse(b"s", b"select $2::int", [0]),
        parse(b"s", b"select $1", [4_000_000_000]),
        parse(b"s", b"select '\xff'"),
    ),
    "Parse, whose name is in use": [
        batch(parse(b"s", ONE)),
        *each(parse(b"s", ONE), parse(b"s", TEXT)),
        batch(run(b"s", b"1")),
    ],
    "Bind is refused": [
        batch(parse(b"s", ONE), parse(b"t", b"select $1::text, $2::int")),
        *each(
            bind(b"", b"never"),
            bind(b"", b"s"),
            bind(b"", b"s", [b"1", b"2"]),
            bind(b"", b"s", [b"x"]),
            bind(b"", b"s", [b"\0\0\1"], binary=True),
            bind(b"", b"t", [b"\xff", b"1"]),
            bound(b"s", [2], [b"1"], [0]),
            bound(b"s", [0, 0], [b"1"], [0]),
            bound(b"s", [0], [b"1"], [0, 0]),
        ),
        batch(run(b"s", b"7"), run(b"t", b"x", None)),
    ],
    "Bind, and formats": [
        batch(parse(b"t", b"select $1::text, $2::int", [TEXTS, INT])),
        batch(bound(b"t", [], [b"a", b"1"], []), execute()),
        batch(bound(b"t", [1], [b"a", b"\0\0\0\2"], [1]), describe_portal(b""), execute()),
        batch(bound(b"t", [0, 1], [b"a", b"\0\0\0\3"], [1, 0]), describe_portal(b""), execute()),
        batch(bound(b"t", [0, 1], [None, None], [0, 1]), execute()),
    ],
    "Describe is refused": each(describe_statement(b"never"), describe_portal(b"never"), describe_statement(b"")),
    "Execute is refused": [
        *each(execute(b"never"), execute()),
        batch(parse(b"i", b"insert into t values (1)"), bind(b"", b"i"), execute(), execute()),
        batch(parse(b"", SERIES), bind(b"", b""), execute(), execute(), execute()),
        batch(parse(b"", b"select 1/(random()*0)::int"), bind(b"", b""), execute(), execute()),
        said(b"select count(*) from t"),
    ],
    "Close is never refused": each(
        close_statement(b"never"), close_portal(b"never"), close_statement(b""), close_portal(b"")
    ),
    "Query is refused": [
        step
        for sql in (b"selec", b"select 1; selec", b"select 1; select 1/0; select 2", b"select * from nowhere", b"'")
        for step in (said(sql), AFTER, BEGIN, said(sql), AFTER, ROLLBACK)
    ],
    "FunctionCall is refused": [
        step
        for message in (call(PLUS), call(PLUS, b"1", b"x"), call(0), call(PLUS, b"\0", b"\0", binary=True))
        for step in ((message, "Z"), AFTER, BEGIN, (message, "Z"), AFTER, ROLLBACK)
    ],
    "messages of COPY where there is none": [
        (copy_data(b"1\n") + COPY_DONE_MESSAGE + query(b"select 1"), "Z"),
        (copy_fail(b"no") + copy_data(b"2\n") + SYNC, "Z"),
        BEGIN,
        (copy_data(b"3\n") + copy_fail(b"no") + query(b"select 1"), "Z"),
        COMMIT,
        (once(b"select 1") + copy_data(b"4\n") + COPY_DONE_MESSAGE + once(b"select 2") + SYNC, "Z"),
        (bind(b"", b"never") + copy_data(b"5\n") + COPY_DONE_MESSAGE + once(b"select 2") + SYNC, "Z"),
        said(b"select count(*) from t"),
    ],
    "errors with all that they say": [
        said(b"create table checked (n int constraint small check (n < 10), m int not null unique)"),
        said(b"insert into checked values (11, 1)"),
        said(b"insert into checked values (1, null)"),
        said(b"insert into checked values (1, 1), (2, 1)"),
        said(b"alter table checked add constraint far foreign key (n) references checked (m)"),
        batch(once(b"insert into checked values ($1::int, 5)", b"4")),
        said(b"select nothing('x')"),
        said(b"select 1 from where"),
        said(b"select nn from checked"),
        said(b"do $$ begin raise exception 'm' using detail = 'd', hint = 'h', errcode = 'PT007', table = 'x'; end $$"),
        said(b"do $$ begin execute 'select 1/0'; end $$"),
        said(b"do $$ begin raise warning 'w' using hint = 'h'; raise info 'i'; raise log 'l'; raise debug 'd'; end $$"),
        said(b"drop table checked"),
    ],
    "what the server hears in vain": [
        (FLUSH * 3 + query(b"select 1"), "Z"),
        (SYNC * 3, "ZZZ"),
        BEGIN,
        (FLUSH + SYNC + FLUSH + SYNC, "ZZ"),
        COMMIT,
        (FLUSH + once(b"select 1") + FLUSH + FLUSH + SYNC, "Z"),
    ],
}

PIPELINES: Final[dict[str, list[Step]]] = {
    "queries and batches by turns": [
        (b"".join(query(b"select %d" % n) + once(ONE, b"%d" % n) + SYNC for n in range(30)), "Z" * 60),
        (
            b"".join(
                query(b"select 1/%d" % (n % 3)) + once(ONE, b"x" if n % 4 else b"1") + once(TEXT, b"y") + SYNC
                for n in range(30)
            ),
            "Z" * 60,
        ),
        AFTER,
    ],
    "one long batch": [
        (b"".join(once(ONE, b"%d" % n) for n in range(300)) + SYNC, "Z"),
        (b"".join(once(ONE, b"x" if n == 100 else b"%d" % n) for n in range(300)) + SYNC, "Z"),
        AFTER,
    ],
    "one statement, over many batches": [
        (
            parse(b"s", ONE) + b"".join(run(b"s", None if n % 7 else b"x") + SYNC for n in range(50)),
            "Z" * 50,
        ),
        (b"".join(run(b"s", b"%d" % n) + SYNC + run(b"never") + SYNC for n in range(25)), "Z" * 50),
        batch(run(b"s", b"1")),
    ],
    "many statements, over many batches": [
        (b"".join(parse(b"s%d" % n, b"select %d" % n) + SYNC for n in range(40)), "Z" * 40),
        (b"".join(run(b"s%d" % (n * 7 % 40)) for n in range(40)) + SYNC, "Z"),
        (b"".join(run(b"s%d" % n) + SYNC + describe_statement(b"s%d" % n) + SYNC for n in range(40)), "Z" * 80),
        (b"".join(close_statement(b"s%d" % n) for n in range(0, 40, 2)) + SYNC, "Z"),
        (b"".join(run(b"s%d" % n) + SYNC for n in range(40)), "Z" * 40),
    ],
    "Flush anywhere": [
        (FLUSH + parse(b"s", ONE) + FLUSH + bind(b"", b"s", [b"1"]) + FLUSH + execute() + FLUSH + SYNC + FLUSH, "Z"),
        (parse(b"", TEXT) + FLUSH, "1"),
        (bind(b"", b"", [b"x"]) + FLUSH, "2"),
        (describe_portal(b"") + FLUSH, "T"),
        (execute() + FLUSH, "C"),
        (close_portal(b"") + FLUSH, "3"),
        (bind(b"", b"never") + FLUSH, "E"),
        (execute() + FLUSH + FLUSH, ""),
        (SYNC, "Z"),
        batch(run(b"s", b"2")),
    ],
    "transactions in one write": [
        (
            b"".join(
                once(sql)
                for sql in (
                    *(b"begin", b"insert into t values (1)", b"savepoint a", b"insert into t values (2)"),
                    *(b"rollback to a", b"commit", b"begin", b"insert into t values (3)"),
                )
            )
            + SYNC
            + once(b"rollback")
            + SYNC,
            "ZZ",
        ),
        said(b"select count(*) from t"),
        (
            once(b"begin") + SYNC + once(b"select 1/0") + SYNC + once(b"select 1") + SYNC + once(b"commit") + SYNC,
            "ZZZZ",
        ),
        (once(b"insert into t values (4)") + once(b"commit") + once(b"select 1/0") + SYNC, "Z"),
        said(b"select count(*) from t"),
    ],
    "one that fails, between implicit transactions": [
        (
            once(b"insert into t values (1)")
            + SYNC
            + once(b"insert into t values (2)")
            + once(b"select 1/0")
            + once(b"insert into t values (3)")
            + SYNC
            + query(b"insert into t values (4); select 1/0")
            + query(b"insert into t values (5)"),
            "ZZZZ",
        ),
        said(b"select n from t order by n"),
    ],
    "notices and settings in it": [
        (
            query(b"set application_name = 'p'")
            + once(b"do $$ begin raise notice 'n'; end $$")
            + SYNC
            + query(b"reset application_name")
            + once(b"commit")
            + SYNC
            + query(b"select 1"),
            "ZZZZZ",
        ),
        AFTER,
    ],
    "empty queries in it": [
        (once(b"") + once(b"select 1") + once(b"") + SYNC + query(b"") + query(b";") + once(b"") + SYNC, "ZZZZ"),
        AFTER,
    ],
    "function calls and COPY in it": [
        (
            call(PLUS, b"1", b"2")
            + query(b"copy t from stdin")
            + copy_data(b"1\n")
            + COPY_DONE_MESSAGE
            + call(PLUS, b"1", b"x")
            + once(b"copy t from stdin")
            + copy_data(b"2\n")
            + COPY_DONE_MESSAGE
            + SYNC
            + query(b"copy t to stdout"),
            "ZZZZZ",
        ),
        AFTER,
    ],
    "cursors in it": [
        (
            once(b"begin")
            + parse(b"s", SERIES)
            + bind(b"a", b"s")
            + bind(b"b", b"s")
            + execute(b"a", 1)
            + execute(b"b", 3)
            + SYNC
            + execute(b"a", 2)
            + execute(b"b", 3)
            + execute(b"b", 1)
            + SYNC
            + execute(b"a", 9)
            + close_portal(b"a")
            + close_portal(b"b")
            + once(b"commit")
            + SYNC,
            "ZZZ",
        ),
        batch(run(b"s")),
    ],
}
