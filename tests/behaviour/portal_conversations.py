"""Conversations about portals, cursors and function calls: what is written at once, and where its answers end.

A step is the bytes, and the kinds of the messages that end the answers to it, in their order: "Z" is ReadyForQuery.
They read and write ``t``, of one integer column ``n``, which is empty.
"""

from __future__ import annotations

import struct
from typing import Final

from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_portal,
    close_statement,
    describe_portal,
    execute,
    parse,
    query,
)

__all__ = ["PORTALS", "Step", "call"]

Step = tuple[bytes, str]

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
BEGIN, COMMIT, ROLLBACK = (query(b"begin"), "Z"), (query(b"commit"), "Z"), (query(b"rollback"), "Z")
SERIES: Final = b"select n, 'row ' || n from generate_series(1, 7) n"


def call(function: int, *arguments: bytes | None, binary: bool = False) -> bytes:
    """A FunctionCall; arguments and result in one format."""
    values = b"".join(
        struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value for value in arguments
    )
    head = struct.pack("!ihhh", function, 1, binary, len(arguments))
    return encode(b"F", head + values + struct.pack("!h", binary))


PLUS: Final = 177
"""int4pl."""

PORTALS: dict[str, list[Step]] = {
    "limits": [(parse(b"", SERIES) + bind(b"", b"") + execute(b"", 3) * 4 + SYNC, "Z")],
    "limits, one batch each": [
        BEGIN,
        (parse(b"s", SERIES) + bind(b"p", b"s") + execute(b"p", 3) + SYNC, "Z"),
        (execute(b"p", 3) + SYNC, "Z"),
        (execute(b"p", 3) + SYNC, "Z"),
        (execute(b"p", 3) + SYNC, "Z"),
        COMMIT,
        (execute(b"p", 3) + SYNC, "Z"),
    ],
    "limits with Flush": [
        (parse(b"", SERIES) + bind(b"p", b"") + execute(b"p", 2) + FLUSH, "s"),
        (execute(b"p", 2) + FLUSH, "s"),
        (execute(b"p", 0) + FLUSH, "C"),
        (SYNC, "Z"),
        (execute(b"p", 2) + SYNC, "Z"),
    ],
    "limits where they mean nothing": [
        (parse(b"", b"insert into t values (1), (2)") + bind(b"", b"") + execute(b"", 1) + SYNC, "Z"),
        (parse(b"", b"insert into t values (3), (4) returning n") + bind(b"", b"") + execute(b"", 1) + SYNC, "Z"),
        (parse(b"", b"show server_encoding") + bind(b"", b"") + execute(b"", 1) + SYNC, "Z"),
        (parse(b"", b"set extra_float_digits = 1") + bind(b"", b"") + execute(b"", 1) + SYNC, "Z"),
        (parse(b"", SERIES) + bind(b"", b"") + execute(b"", -1) + SYNC, "Z"),
        (query(b"select count(*) from t"), "Z"),
    ],
    "returning in parts": [
        BEGIN,
        (
            parse(b"", b"insert into t select generate_series(1, 5) returning n")
            + bind(b"p", b"")
            + execute(b"p", 2)
            + SYNC,
            "Z",
        ),
        (execute(b"p", 2) + SYNC, "Z"),
        (execute(b"p", 2) + SYNC, "Z"),
        ROLLBACK,
        (query(b"select count(*) from t"), "Z"),
    ],
    "several portals": [
        BEGIN,
        (parse(b"s", SERIES) + bind(b"a", b"s") + bind(b"b", b"s", binary=True) + SYNC, "Z"),
        (execute(b"a", 1) + execute(b"b", 2) + execute(b"a", 2) + execute(b"b", 1) + SYNC, "Z"),
        (describe_portal(b"a") + describe_portal(b"b") + SYNC, "Z"),
        (close_portal(b"a") + execute(b"b", 1) + SYNC, "Z"),
        (execute(b"b", 0) + execute(b"a", 1) + SYNC, "Z"),
        ROLLBACK,
    ],
    "several portals in a batch of their own": [
        (
            parse(b"s", SERIES)
            + b"".join(bind(b"p%d" % n, b"s") for n in range(20))
            + b"".join(execute(b"p%d" % n, n % 9) for n in range(20))
            + b"".join(close_portal(b"p%d" % n) for n in range(20))
            + SYNC,
            "Z",
        ),
        (execute(b"p1") + SYNC, "Z"),
    ],
    "a portal outlives its statement": [
        BEGIN,
        (parse(b"s", SERIES) + bind(b"p", b"s") + execute(b"p", 1) + SYNC, "Z"),
        (close_statement(b"s") + SYNC, "Z"),
        (execute(b"p", 1) + SYNC, "Z"),
        (parse(b"s", b"select 'another'") + bind(b"q", b"s") + execute(b"q") + execute(b"p", 1) + SYNC, "Z"),
        COMMIT,
    ],
    "the name of a portal is taken": [
        BEGIN,
        (parse(b"s", SERIES) + bind(b"p", b"s") + bind(b"p", b"s") + SYNC, "Z"),
        (execute(b"p") + SYNC, "Z"),
        ROLLBACK,
        (bind(b"", b"s") + bind(b"", b"s") + execute(b"", 1) + SYNC, "Z"),
    ],
    "what a portal is": [
        (parse(b"", b"select 1 as one, 'x' as two") + bind(b"", b"") + describe_portal(b"") + SYNC, "Z"),
        (parse(b"", b"insert into t values (1)") + bind(b"", b"") + describe_portal(b"") + SYNC, "Z"),
        (parse(b"", b"") + bind(b"", b"") + describe_portal(b"") + execute() + SYNC, "Z"),
        (describe_portal(b"") + SYNC, "Z"),
        (describe_portal(b"never") + SYNC, "Z"),
        (close_portal(b"never") + close_portal(b"") + SYNC, "Z"),
    ],
    "an error in the middle of a portal": [
        BEGIN,
        (
            parse(b"", b"select 1 / (n - 3) from generate_series(1, 5) n") + bind(b"p", b"") + execute(b"p", 2) + SYNC,
            "Z",
        ),
        (execute(b"p", 2) + execute(b"p", 2) + SYNC, "Z"),
        (execute(b"p", 2) + SYNC, "Z"),
        ROLLBACK,
        (parse(b"", b"select 1 / (n - 3) from generate_series(1, 5) n") + bind(b"", b"") + execute(b"", 3) + SYNC, "Z"),
    ],
    "a savepoint takes its portals along": [
        BEGIN,
        (parse(b"s", SERIES) + bind(b"p", b"s") + execute(b"p", 1) + SYNC, "Z"),
        (query(b"savepoint x"), "Z"),
        (bind(b"q", b"s") + execute(b"q", 1) + SYNC, "Z"),
        (query(b"rollback to x"), "Z"),
        (execute(b"p", 1) + SYNC, "Z"),
        (execute(b"q", 1) + SYNC, "Z"),
        ROLLBACK,
    ],
    "cursors of SQL": [
        (query(b"declare c cursor for select 1"), "Z"),
        BEGIN,
        (query(b"declare c scroll cursor for " + SERIES), "Z"),
        (query(b"fetch 2 from c"), "Z"),
        (query(b"move 2 in c"), "Z"),
        (query(b"fetch backward 2 from c; fetch last from c; fetch absolute 1 from c"), "Z"),
        (query(b"fetch all from c"), "Z"),
        (query(b"fetch next from c"), "Z"),
        (query(b"close c"), "Z"),
        (query(b"fetch next from c"), "Z"),
        ROLLBACK,
    ],
    "cursors of SQL are portals": [
        BEGIN,
        (query(b"declare c cursor for " + SERIES), "Z"),
        (describe_portal(b"c") + execute(b"c", 2) + SYNC, "Z"),
        (query(b"fetch 1 from c"), "Z"),
        (parse(b"", b"fetch 2 from c") + bind(b"", b"") + describe_portal(b"") + execute() + SYNC, "Z"),
        (execute(b"c", 0) + close_portal(b"c") + SYNC, "Z"),
        (query(b"close c"), "Z"),
        COMMIT,
    ],
    "portals are cursors of SQL": [
        BEGIN,
        (parse(b"", SERIES) + bind(b"p", b"") + execute(b"p", 2) + SYNC, "Z"),
        (query(b"fetch 2 from p"), "Z"),
        (execute(b"p", 1) + SYNC, "Z"),
        (query(b"close p"), "Z"),
        (execute(b"p", 1) + SYNC, "Z"),
        ROLLBACK,
    ],
    "where current of": [
        (query(b"insert into t values (1), (2), (3)"), "Z"),
        BEGIN,
        (parse(b"", b"declare c cursor for select n from t for update") + bind(b"", b"") + execute() + SYNC, "Z"),
        (query(b"fetch c; fetch c"), "Z"),
        (query(b"update t set n = 20 where current of c"), "Z"),
        COMMIT,
        (query(b"select n from t order by n"), "Z"),
    ],
    "a cursor with hold that is closed again": [
        BEGIN,
        (query(b"declare h cursor with hold for " + SERIES), "Z"),
        (query(b"fetch 1 from h; close h"), "Z"),
        COMMIT,
        (query(b"fetch 1 from h"), "Z"),
    ],
    "a cursor in one query": [
        (query(b"begin; declare c cursor for " + SERIES + b"; fetch 2 from c; commit; select 1"), "Z"),
    ],
    "function calls": [
        (call(PLUS, b"20", b"22"), "Z"),
        (call(PLUS, b"\0\0\0\x14", b"\0\0\0\x16", binary=True), "Z"),
        (call(PLUS, None, b"1"), "Z"),
        (call(PLUS, b"1"), "Z"),
        (call(PLUS, b"x", b"1"), "Z"),
        (call(PLUS, b"2147483647", b"1"), "Z"),
        (call(4_000_000_000 - 2**32, b"1"), "Z"),
        (query(b"select 1"), "Z"),
    ],
    "function calls in a transaction": [
        BEGIN,
        (call(PLUS, b"1", b"2"), "Z"),
        (query(b"insert into t values (1)"), "Z"),
        (call(PLUS, b"x", b"2"), "Z"),
        (call(PLUS, b"1", b"2"), "Z"),
        COMMIT,
        (query(b"select count(*) from t"), "Z"),
    ],
    "function calls in a pipeline": [
        (query(b"select 1") + call(PLUS, b"1", b"2") + call(PLUS, b"x", b"2") + query(b"select 2"), "ZZZZ"),
        (parse(b"s", b"select 5") + bind(b"", b"s") + execute() + call(PLUS, b"1", b"2") + SYNC, "ZZ"),
        (bind(b"", b"no") + call(PLUS, b"1", b"2") + SYNC, "Z"),
        (parse(b"u", b"select 6") + SYNC + call(PLUS, b"1", b"2") + bind(b"", b"u") + execute() + SYNC, "ZZZ"),
    ],
    "a large function call": [
        # length(text)
        (call(1317, b"x" * 300_000), "Z"),
        (call(1317, b"x" * 300_000) + query(b"select 1"), "ZZ"),
        # repeat(text, int)
        (call(1622, b"abc", b"50000"), "Z"),
    ],
}
