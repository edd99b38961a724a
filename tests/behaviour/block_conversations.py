"""Conversations about transaction blocks, beside :mod:`behaviour.transaction_conversations`: how they are written, and
whatever may come first in them.

A step is the bytes, and the kinds of the messages that end the answers to it, as in
:mod:`behaviour.portal_conversations`. They read and write ``t``, of one integer column ``n``, which is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from behaviour.portal_conversations import PLUS, call
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

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["BLOCKS"]

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
INSERT: Final = b"insert into t values (1)"


def said(*texts: bytes) -> list[Step]:
    """Each is one simple query, and waits for its answer."""
    return [(query(text), "Z") for text in texts]


def once(text: bytes) -> bytes:
    return parse(b"", text) + bind(b"", b"") + describe_portal(b"") + execute()


COUNT: Final = said(b"select count(*) from t")
BEGIN: Final = said(b"begin")
ROLLBACK: Final = said(b"rollback")
MODES: Final = b"select current_setting('transaction_isolation'), current_setting('transaction_read_only')"

FIRST: Final[dict[str, tuple[bytes, str]]] = {
    "a query": (query(b"select 1"), "Z"),
    "nothing": (query(b""), "Z"),
    "several commands": (query(b"select 1; select 2"), "Z"),
    "a syntax error": (query(b"selec"), "Z"),
    "an error": (query(b"select 1/0"), "Z"),
    "a text that is none": (encode(b"Q", b"select 1"), "Z"),
    "a batch": (once(b"select 1") + SYNC, "Z"),
    "a batch that fails": (once(b"select 1/0") + once(b"select 1") + SYNC, "Z"),
    "a batch in its parts": (parse(b"s", b"select 1") + describe_statement(b"s") + FLUSH, "T"),
    "a sync": (SYNC, "Z"),
    "a portal that does not exist": (execute() + SYNC, "Z"),
    "the description of one": (describe_portal(b"") + SYNC, "Z"),
    "a statement that does not exist": (bind(b"", b"") + SYNC, "Z"),
    "the description of such a statement": (describe_statement(b"") + SYNC, "Z"),
    "a close": (close_statement(b"no") + close_portal(b"no") + SYNC, "Z"),
    "a function call": (call(PLUS, b"1", b"2"), "Z"),
    "a function call that fails": (call(PLUS, b"x", b"2"), "Z"),
    "a copy in": (query(b"copy t from stdin") + copy_data(b"1\n2\n") + COPY_DONE_MESSAGE, "Z"),
    "a copy in that is given up": (query(b"copy t from stdin") + copy_data(b"1\n") + copy_fail(b"no"), "Z"),
    "a copy in of a batch": (once(b"copy t from stdin") + SYNC + copy_data(b"1\n") + COPY_DONE_MESSAGE + SYNC, "Z"),
    "a copy out": (query(b"copy (select 1) to stdout"), "Z"),
    "a copy out of a batch": (once(b"copy (select 1) to stdout") + SYNC, "Z"),
    "something that no block may have": (query(b"vacuum"), "Z"),
    "the same in a batch": (once(b"vacuum") + SYNC, "Z"),
    "a savepoint": (query(b"savepoint a"), "Z"),
    "a savepoint that does not exist": (query(b"rollback to a"), "Z"),
    "a begin": (query(b"begin"), "Z"),
    "a begin in a batch": (once(b"begin") + SYNC, "Z"),
    "a begin with other modes": (query(b"begin read only, isolation level serializable"), "Z"),
    "an end in a batch": (once(b"commit") + SYNC, "Z"),
    "an end with a chain": (query(b"commit and chain"), "Z"),
    "a rollback with a chain": (query(b"rollback and chain"), "Z"),
    "an end that is misspelt": (query(b"comit"), "Z"),
    "two ends": (query(b"commit; commit"), "Z"),
    "an end behind something": (query(b"select 1; commit"), "Z"),
    "modes": (query(b"set transaction isolation level serializable, read only"), "Z"),
    "a local setting": (query(b"set local application_name = 'x'"), "Z"),
    "a setting": (query(b"set application_name = 'x'"), "Z"),
    "a notice": (query(b"do $$ begin raise notice 'x'; end $$"), "Z"),
    "a cursor": (query(b"declare c cursor for select generate_series(1, 3); fetch 2 from c"), "Z"),
    "a large text": (query(b"select length('" + b"x" * 100_000 + b"')"), "Z"),
    "a pipeline": (query(b"select 1") + once(b"select 2") + SYNC + query(b"select 3"), "ZZZ"),
    "a pipeline that fails": (query(b"select 1/0") + once(b"select 2") + SYNC + query(b"commit"), "ZZZ"),
    "all the rest": (query(INSERT) + query(b"commit") + query(b"begin"), "ZZZ"),
}
"""What may come first in a block."""

BLOCKS: Final[dict[str, list[Step]]] = {
    "in every spelling": said(
        *(b"BEGIN WORK;", b"COMMIT WORK;", b"begin transaction", b"end transaction", b"start transaction"),
        *(b"abort work", b"Start  Transaction ;", b"Rollback Transaction ;", b"begin -- why", b"commit /* because */"),
        *(b"begin;;", b"end;", b"begin\r\n\twork", b"rollback\n", b" begin", b" commit", b"begin", b"abort -- it"),
    ),
    "that are none": said(
        *(b"begin work work", b"begin 'x'", b"begin atomic", b"begin /* never", b"start work", b"commit work work"),
        *(b"begin", b"end if", b"rollback", b"begin", b"commit 'x'", b"rollback"),
        *(b"begin", b"rollback to", b"rollback"),
    ),
    "whose text is not one": [
        (encode(b"Q", b"begin"), "Z"),
        (encode(b"Q", b"begin\0\0"), "Z"),
        (encode(b"Q", b"b\0egin\0"), "Z"),
        (query(b"begin -- \xc3\x28"), "Z"),
        *BEGIN,
        (encode(b"Q", b"commit"), "Z"),
        *ROLLBACK,
    ],
    "by settings": said(
        *(b"set default_transaction_read_only = on", b"begin", INSERT, b"rollback"),
        *(b"begin read write", INSERT, b"commit", b"reset default_transaction_read_only"),
        *(b"set default_transaction_isolation = 'serializable'", b"begin", MODES, b"commit"),
        *(b"start transaction read only", MODES, b"end", b"reset default_transaction_isolation"),
    ),
    "that fail at their end": said(
        b"begin; create temp table d (n int unique deferrable initially deferred) on commit drop",
        *(b"insert into d values (1)", b"insert into d values (1)", b"commit", b"select 1"),
    ),
    "with cursors": said(
        *(b"begin", b"declare c cursor for select generate_series(1, 5)", b"fetch 2 from c", b"move 1 in c"),
        *(b"fetch all from c", b"commit", b"fetch 1 from c", b"begin", b"fetch 1 from c", b"rollback"),
    ),
    "with statements of before": [
        (parse(b"s", b"select $1::int") + SYNC, "Z"),
        *BEGIN,
        (bind(b"", b"s", [b"1"]) + execute() + SYNC, "Z"),
        *said(b"commit", b"begin"),
        (parse(b"s", b"select 2") + SYNC, "Z"),
        *said(b"rollback", b"begin"),
        (describe_statement(b"s") + close_statement(b"s") + SYNC, "Z"),
        *said(b"rollback", b"begin"),
        (bind(b"", b"s", [b"1"]) + execute() + SYNC, "Z"),
        *ROLLBACK,
    ],
    "of one moment": said(
        *(b"begin", b"select now() = transaction_timestamp()", b"commit"),
        *(b"begin", b"select now() <= statement_timestamp()", b"rollback"),
    ),
    **{
        f"that begin with {name}": [*BEGIN, first, (SYNC, "Z"), *said(INSERT, b"select 1", b"commit"), *COUNT]
        for name, first in FIRST.items()
    },
}
