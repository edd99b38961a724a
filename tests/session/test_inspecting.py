"""What goes ahead of a Bind whose columns the client was told, and what becomes of it."""

from __future__ import annotations

import pytest

from helpers.conversations import FLUSH, SYNC, run
from helpers.exchange import Exchange
from helpers.transcript import transcript
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode, messages
from pgtrunk.wire.frontend import bind, close_statement, describe_portal, describe_statement, execute, parse, query
from pgtrunk_gateway.session.inspecting import CHANGED
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.shapes import EXECUTION
from pgtrunk_gateway.session.statements import Prepared

TEXT = b"select $1::int"
PARSED, BOUND, CLOSED = (encode(kind) for kind in (b"1", b"2", b"3"))
PARAMETERS, INT, TEXTUAL = (
    encode(b"t", b"\0\1\0\0\0\x17"),
    b.row_description(["int4"], [23]),
    b.row_description(["int4"]),
)
ROW, DONE, READY = b.data_row([b"1"]), b.command_complete("SELECT 1"), b.ready()
STALE = "ErrorResponse ERROR 0A000 cached plan must not change result type"


class Held(Exchange):
    """One that keeps what is postponed."""

    def __init__(self) -> None:
        super().__init__()
        self.postponed: list[tuple[bytes, bool]] = []
        self.requests._postpone = lambda rest, inspects: self.postponed.append((rest, inspects))

    def move(self) -> None:
        """To a backend that knows nothing."""
        self.replies = Replies(Prepared(10), {})

    def resume(self) -> str:
        ((rest, _),) = self.postponed
        self.postponed.clear()
        return self.kinds(rest)


def told(name: bytes = b"s") -> Held:
    """One whose client has been told the columns, by a backend that it does not have any more."""
    exchange = Held()
    exchange.send(parse(name, TEXT) + describe_statement(name) + SYNC)
    exchange.move()
    return exchange


def other_bind(name: bytes = b"s") -> bytes:
    return bind(b"", name, [b"1"]) + execute() + SYNC


@pytest.mark.parametrize("shape", [0, EXECUTION])
def test_it_is_described_ahead_and_nothing_else_goes(shape: int) -> None:
    exchange = told()
    request = other_bind()
    sent = exchange.plan(request, shape)
    assert [chr(kind) for kind, _, _ in messages(sent)] == ["P", "D", "H"]
    assert exchange.owed() == ["parse", "inspect"]
    assert exchange.postponed == [(request, True)]
    assert exchange.feed(PARSED, PARAMETERS, INT) == []
    assert exchange.resume() == "BES"
    assert exchange.feed(BOUND, ROW, DONE, READY)[-1] == "ReadyForQuery I"
    # From then on it is known.
    assert exchange.plan(request, EXECUTION) == request.replace(b"\0s\0", b"\0~\0")


def test_it_is_refused_where_it_is_described_otherwise() -> None:
    exchange = told()
    request = run(b"s", b"1") + run(b"s", b"2") + SYNC + query(b"select 1")
    for times in range(3):
        assert exchange.kinds(request) == ("CPDH" if times else "PDH")
        assert exchange.feed(*([CLOSED] if times else []), PARSED, PARAMETERS, TEXTUAL) == []
        # What is sent in its place fails; the rest is skipped, and what comes behind Sync is not.
        assert exchange.resume()[:2] == "PB"
        answer = exchange.feed(b.error("42601", "syntax error"), READY, INT, ROW, DONE, READY)
        assert answer[:2] == [STALE, "ReadyForQuery I"] and answer[-1] == "ReadyForQuery I"
        assert exchange.replies.settled and exchange.replies.in_step
        assert not exchange.postponed


def test_the_error_is_one_that_drivers_know() -> None:
    assert b"\0RRevalidateCachedQuery\0\0" in CHANGED
    assert transcript(CHANGED) == [STALE]


def test_until_it_is_described_anew() -> None:
    exchange = told()
    before = exchange.requests.statements[b"s"]
    assert exchange.kinds(describe_statement(b"s") + SYNC) == "PDS"
    assert exchange.feed(PARSED, PARAMETERS, TEXTUAL, READY)[:2] == [
        "ParameterDescription [23]",
        "RowDescription int4:25",
    ]
    after = exchange.requests.statements[b"s"]
    assert after is not before and after.told is not before.told
    assert exchange.requests.catalogue.intern(1, before.body) is after
    # It is another one now, which this backend does not have; who waits is told of nothing that has changed.
    assert exchange.kinds(other_bind()) == "PDH"
    exchange.feed(PARSED, PARAMETERS, TEXTUAL)
    assert exchange.resume() == "BES"


def test_until_it_is_parsed_anew() -> None:
    exchange = told()
    anew = close_statement(b"s") + parse(b"s", TEXT)
    assert exchange.kinds(anew + other_bind()) == "PDBES"
    assert not exchange.postponed


def test_a_close_that_is_skipped_leaves_it_told() -> None:
    exchange = told()
    exchange.plan(run(b"none") + close_statement(b"s") + parse(b"s", TEXT) + SYNC)
    exchange.feed(b.error("26000", "no"), READY)
    assert exchange.requests.described == {b"s"}
    assert exchange.kinds(other_bind())[-3:] == "PDH"


@pytest.mark.parametrize(
    ("request_", "sent"),
    [
        (bind(b"", b"s", [b"1"]) + describe_portal(b"") + execute() + SYNC, "PDBDES"),
        (bind(b"p", b"s", [b"1"]) + describe_portal(b"p") + execute(b"p") + SYNC, "PDBDES"),
        (describe_statement(b"s") + run(b"s", b"1") + SYNC, "PDBES"),
    ],
)
def test_who_is_told_with_the_rows_does_not_wait(request_: bytes, sent: str) -> None:
    exchange = told()
    assert exchange.kinds(request_) == sent
    assert not exchange.postponed


@pytest.mark.parametrize(
    "request_",
    [
        bind(b"", b"s", [b"1"]) + describe_portal(b"p") + execute() + SYNC,
        bind(b"p", b"s", [b"1"]) + describe_statement(b"p") + execute(b"p") + SYNC,
    ],
)
def test_who_is_told_of_another_portal_does(request_: bytes) -> None:
    exchange = told()
    exchange.plan(request_)
    assert exchange.postponed


def test_who_was_not_told_does_not_wait_either() -> None:
    exchange = told()
    other = Held()
    other.requests = type(other.requests)(exchange.requests.catalogue)
    other.send(parse(b"s", TEXT) + SYNC)
    statement = other.requests.statements[b"s"]
    assert statement is exchange.requests.statements[b"s"]
    # Once it is asked how it is described, for the next time.
    assert other.kinds(other_bind()) == "CPDBES"
    other.feed(CLOSED, PARSED, PARAMETERS, INT, BOUND, ROW, DONE, READY)
    assert other.replies.prepared.serves(statement, other.replies.batch)
    assert other.kinds(other_bind()) == "BES"


def test_what_has_no_columns_and_no_parameters_is_told_by_nothing() -> None:
    exchange = Held()
    exchange.send(parse(b"s", b"begin") + describe_statement(b"s") + SYNC)
    exchange.move()
    assert exchange.kinds(run(b"s") + SYNC) == "PBES"


def test_the_unnamed_statement_of_a_client() -> None:
    exchange = told(b"")
    request = bind(b"", b"", [b"1"]) + execute() + SYNC
    assert exchange.kinds(request) == "PDH"
    exchange.feed(PARSED, PARAMETERS, INT)
    assert exchange.resume() == "BES"
    exchange.feed(BOUND, ROW, DONE, READY)
    assert exchange.kinds(request) == "BES"
    exchange.feed(BOUND, ROW, DONE, READY)
    exchange.move()
    assert exchange.kinds(request) == "PDH"
    exchange.feed(PARSED, PARAMETERS, TEXTUAL)
    exchange.resume()
    assert exchange.feed(b.error("42601", "syntax error"), READY) == [STALE, "ReadyForQuery I"]


def test_other_settings_do_not_change_what_was_told() -> None:
    exchange = told()
    before = exchange.requests.statements[b"s"]
    exchange.requests.speak(("UTF8", "Asia/Tokyo"))
    after = exchange.requests.statements[b"s"]
    assert after is not before and after.told is before.told is not None
    assert exchange.kinds(other_bind()) == "PDH"


# -- what waits for more -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [SYNC, FLUSH, query(b"select 1"), encode(b"X"), other_bind()[:-9]])
def test_it_waits_until_the_client_asks_for_answers(more: bytes) -> None:
    """What is ahead of it would be answered sooner than Postgres would."""
    exchange = told()
    exchange.send(parse(b"", b"select 1") + SYNC)
    ahead, request = run(b""), run(b"s", b"1")
    assert exchange.kinds(ahead + request) == "BE"
    assert exchange.postponed == [(request, False)]
    exchange.postponed.clear()
    assert exchange.kinds(request + more) == "PDH"
    assert exchange.postponed == [(request + more, True)]


def test_it_does_not_wait_for_ever() -> None:
    exchange = told()
    request = bind(b"", b"s", [b"1" * 70_000]) + execute()
    assert exchange.kinds(request) == "PDH"
    assert exchange.postponed == [(request, True)]


def test_one_that_is_there_in_part_is_held_as_it_is() -> None:
    exchange = told()
    part = bind(b"", b"s", [b"1" * 100_000])[:9000]
    assert exchange.kinds(part) == "PDH"
    assert exchange.requests.unfinished == 0
    exchange.feed(PARSED, PARAMETERS, TEXTUAL)
    # If it is refused, its rest goes all the same, and is skipped.
    ((rest, _),) = exchange.postponed
    sent = exchange.plan(rest)
    assert sent.startswith(b"P") and sent.endswith(part.replace(b"\0s\0", b"\0~\0")[-8000:])
    assert exchange.requests.unfinished == 2
    assert exchange.feed(b.error("42601", "syntax error")) == [STALE]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_if_it_cannot_be_parsed_the_client_gets_that_error() -> None:
    exchange = told()
    exchange.plan(other_bind() + run(b"s", b"1") + SYNC)
    assert exchange.feed(b.error("42P01", "no such table")) == ["ErrorResponse ERROR 42P01 no such table"]
    assert exchange.replies.skipping and exchange.requests.open
    # What was held is skipped up to its Sync; what is behind it is looked at anew.
    assert exchange.resume() == "BESPDH"
    assert exchange.owed() == ["sync", "parse", "inspect"]


def test_if_what_is_ahead_fails_it_is_skipped_too() -> None:
    exchange = told()
    exchange.send(parse(b"a", b"select 1") + SYNC)
    assert exchange.kinds(run(b"a") + other_bind()) == "BEPDH"
    assert exchange.feed(BOUND, b.error("22012", "division by zero"))[-1].endswith("division by zero")
    statement = exchange.requests.statements[b"s"]
    assert not exchange.replies.prepared.usable(statement, exchange.replies.batch)
    assert exchange.resume() == "BES"
    assert exchange.feed(READY) == ["ReadyForQuery I"]
    assert exchange.kinds(other_bind()) == "PDH"
