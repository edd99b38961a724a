"""Which texts are nothing but the beginning or the end of a transaction block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.session.sql.blocks import MAY_BEGIN, BlockCommand, block_command

BEGIN, COMMIT, ROLLBACK = BlockCommand("BEGIN", begins=True), BlockCommand("COMMIT"), BlockCommand("ROLLBACK")
MAY_FAIL = BlockCommand("BEGIN", begins=True, may_fail=True)
START = BlockCommand("START TRANSACTION", begins=True)
START_THAT_MAY_FAIL = BlockCommand("START TRANSACTION", begins=True, may_fail=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"begin", BEGIN),
        (b"BEGIN;", BEGIN),
        (b"Begin ; ;", BEGIN),
        (b"begin work", BEGIN),
        (b"BEGIN TRANSACTION;", BEGIN),
        (b"begin\n\ttransaction\r\n", BEGIN),
        (b"begin -- a word", BEGIN),
        (b"begin -- a word\n;", BEGIN),
        (b"begin/* one /* two */ */work", BEGIN),
        (b"begin read only", BEGIN),
        (b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", BEGIN),
        (b"begin isolation level read committed, read only, not deferrable", BEGIN),
        (b"begin isolation level read uncommitted deferrable", BEGIN),
        (b"begin transaction read only,read only", BEGIN),
        (b"begin read write", MAY_FAIL),
        (b"BEGIN ISOLATION LEVEL SERIALIZABLE;", MAY_FAIL),
        (b"begin read only, isolation level serializable", MAY_FAIL),
        (b"start transaction", START),
        (b"START TRANSACTION READ ONLY;", START),
        (b"Start Transaction Isolation Level Serializable, Read Only, Deferrable", START_THAT_MAY_FAIL),
        (b"commit", COMMIT),
        (b"COMMIT;", COMMIT),
        (b"commit work", COMMIT),
        (b"Commit Transaction ; ", COMMIT),
        (b"end", COMMIT),
        (b"END TRANSACTION", COMMIT),
        (b"end work;", COMMIT),
        (b"rollback", ROLLBACK),
        (b"ROLLBACK;", ROLLBACK),
        (b"rollback transaction", ROLLBACK),
        (b"abort", ROLLBACK),
        (b"ABORT WORK;", ROLLBACK),
        (b"rollback /* why */", ROLLBACK),
    ],
)
def test_what_each_is(text: bytes, expected: BlockCommand) -> None:
    assert block_command(text + b"\0") == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b";",
        b"select 1",
        b"insert into t values (1)",
        b"begins",
        b"begin$",
        b"begin work transaction",
        b"begin work work",
        b"begin transaction transaction",
        b"begin; select 1",
        b"begin; commit",
        b"begin begin",
        b"begin atomic",
        b"begin ,",
        b"begin , read only",
        b"begin read only,",
        b"begin read only, , deferrable",
        b"begin read",
        b"begin read only x",
        b"begin isolation level",
        b"begin isolation level snapshot",
        b"begin isolation level 'serializable'",
        b"begin isolation level repeatable",
        b"begin not",
        b"begin 1",
        b"begin 'x'",
        b"begin $$x$$",
        b"begin (read only)",
        b'"begin"',
        b"begin --\rcommit",
        b"begin /* never ends",
        b"begin /* one /* two */",
        b"start",
        b"start work",
        b"start transaction work",
        b"start_transaction",
        b"starts transaction",
        b"commit and chain",
        b"commit and no chain",
        b"commit work and chain",
        b"commit prepared 'x'",
        b"commit; commit",
        b"commit transaction 5",
        b"end if",
        b"rollback to savepoint a",
        b"rollback to a",
        b"rollback prepared 'x'",
        b"rollback work to a",
        b"rollback and chain",
        b"abort and chain",
        b"abort work work",
        b"release a",
        b"savepoint a",
        b"set transaction read only",
        b"prepare transaction 'x'",
        # These are, but it need not be known.
        b" begin",
        b"/* x */ begin",
        b";begin",
        # And these may be, on some server.
        b"begin\v",
        b"begin\fwork",
        b"begin -- \xc3\xa4",
        b"begin /* \xff */",
        b"begin -- \x1b",
        b"begin --" + b"x" * 200,
    ],
)
def test_what_is_none(text: bytes) -> None:
    assert block_command(text + b"\0") is None


@pytest.mark.parametrize("octets", [b"", b"\0", b"begin", b"begin\0\0", b"beg\0in\0", b"begin -- \0\0", b"begin\0 "])
def test_what_is_no_text(octets: bytes) -> None:
    """A Query ends with the only zero in it; whatever else is in one, Postgres refuses."""
    assert block_command(octets) is None


BEGINNINGS = st.sampled_from([b"begin", b"BEGIN;", b"begin read only", b"start transaction", b"Start  Transaction"])


@given(BEGINNINGS, st.binary(max_size=3))
def test_what_may_begin_is_looked_at(text: bytes, more: bytes) -> None:
    """The glance at the first octets lets all of them through."""
    command = block_command(text + more + b"\0")
    if command is not None and command.begins:
        may = MAY_BEGIN[text[0]]
        assert may == 1 or (may == 2 and text[1:2] in b"tT")


@pytest.mark.parametrize("text", [b"commit", b"end", b"rollback", b"abort", b"with", b"insert", b"\xff", b"\0", b" "])
def test_what_cannot_begin_is_not_looked_at(text: bytes) -> None:
    assert not MAY_BEGIN[text[0]]
