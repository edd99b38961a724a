"""The answers to a BEGIN of which the client has been told already, and to what goes behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.transcript import transcript
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared

if TYPE_CHECKING:
    from pgtrunk_gateway.session.owed import Owed

BEGUN = encode(b"1") + encode(b"2") + b.command_complete("BEGIN") + encode(b"3")
ROW, DONE = b.data_row([b"x"]), b.command_complete("SELECT 1")
ERROR = b.error("22012", "division by zero")
CANCELLED = b.error("57014", "canceling statement due to user request")
GOODBYE = b.error("57P01", "terminating connection due to administrator command", severity="FATAL")
READY, IN_BLOCK, FAILED = b.ready(), b.ready(b"T"), b.ready(b"E")
T = ord("T")


def owing(*entries: Owed) -> Replies:
    replies = Replies(Prepared(10), {})
    replies.extend([*owed.BEGIN, *entries])
    return replies


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_the_client_gets_what_follows_and_nothing_else(size: int) -> None:
    replies = owing(owed.QUERY)
    data = BEGUN + ROW + DONE + IN_BLOCK
    received = b"".join(replies.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert received == ROW + DONE + IN_BLOCK
    assert (replies.status, replies.settled, replies.in_step) == (T, True, True)


def test_the_transaction_is_open_before_anything_says_so() -> None:
    """A plan that turns out to be stale then is not asked for again, above all."""
    replies = owing(owed.BATCH)
    assert replies.feed(BEGUN[:-5]) == b""
    assert replies.status == T
    assert replies.feed(BEGUN[-5:]) == b""
    assert list(replies.queue) == [owed.BATCH]


def test_what_postgres_says_in_between_is_hidden() -> None:
    replies = owing(owed.QUERY)
    told = b.notice("00000", "hm") + b.parameter_status("in_hot_standby", "off")
    assert replies.feed(told + BEGUN + told) == told
    assert replies.parameters == {"in_hot_standby": "off"}


def test_an_error_behind_it_is_the_clients() -> None:
    replies = owing(owed.QUERY, owed.BATCH)
    assert replies.feed(BEGUN + ERROR + FAILED) == ERROR + FAILED
    assert replies.unbegun is None
    assert replies.status == ord("E")
    assert list(replies.queue) == [owed.BATCH]


def test_one_that_has_failed_fails_in_postgres_too() -> None:
    replies = owing(owed.FAILING, owed.QUERY)
    assert replies.feed(BEGUN + ERROR + FAILED) == b""
    aborted = b.error("25P02", "current transaction is aborted")
    assert replies.feed(aborted + FAILED) == aborted + FAILED
    assert replies.in_step
    assert replies.hidden_error is None


# -- BEGIN fails -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [0, 5, 10])
def test_a_query_is_skipped_with_it(answered: int) -> None:
    replies = owing(owed.QUERY)
    assert replies.feed(BEGUN[:answered] + CANCELLED) == b""
    assert replies.unbegun == CANCELLED[5:]
    assert replies.noted and not replies.in_step
    # The backend skips up to a Sync that has not been sent.
    assert (replies.settled, replies.skipping) == (True, True)
    replies.push(owed.HIDDEN_SYNC)
    assert replies.feed(READY) == b""
    assert (replies.settled, replies.skipping) == (True, False)


@pytest.mark.parametrize("batch", [[owed.BATCH], [owed.PARSE, owed.BIND, owed.EXECUTE, owed.SYNC]])
def test_a_batch_is_skipped_with_it_and_its_end_is_hidden(batch: list[Owed]) -> None:
    replies = owing(*batch)
    assert replies.feed(CANCELLED) == b""
    assert not replies.skipping and len(replies.queue) == 1
    assert replies.feed(READY) == b""
    assert replies.settled
    assert replies.unbegun is not None


def test_what_runs_behind_that_is_for_nobody_to_see() -> None:
    replies = owing(owed.FAILING, owed.BATCH, owed.QUERY, owed.made(encode(b"1")), owed.PARSE, owed.SYNC)
    assert replies.feed(CANCELLED + READY) == b""
    assert replies.feed(ROW + DONE + READY + encode(b"1") + READY) == b""
    assert replies.settled
    assert not replies.in_step


def test_an_error_behind_that_too() -> None:
    replies = owing(owed.BATCH, owed.QUERY, owed.BIND, owed.EXECUTE, owed.SYNC)
    assert transcript(replies.feed(CANCELLED + READY + DONE + ERROR + READY + ERROR)) == []
    assert replies.unbegun == CANCELLED[5:]
    assert [entry.ends for entry in replies.queue] == [b"Z"]
    assert transcript(replies.feed(READY)) == []
    assert replies.settled


@pytest.mark.parametrize("entry", [*owed.BEGIN, owed.FAILING, owed.Applying("")])
def test_the_end_of_the_connection_is_told(entry: Owed) -> None:
    """It is no answer to what is hidden."""
    replies = Replies(Prepared(10), {})
    replies.extend([entry, owed.QUERY])
    assert replies.feed(GOODBYE) == GOODBYE
    assert replies.fatal == GOODBYE[5:]
    assert replies.unbegun is None and replies.hidden_error is None
