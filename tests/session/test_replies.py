"""The rules of what is owed, one by one, with the answers of a server written out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.exchange import Exchange
from helpers.transcript import transcript
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import SYNC_MESSAGE, execute, parse, query
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.owed import Naming, Owed, Parsing
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared, Statement

PARSED, BOUND, CLOSED, NO_DATA, SUSPENDED = (encode(kind) for kind in (b"1", b"2", b"3", b"n", b"s"))
ROW, DONE = b.data_row([b"x"]), b.command_complete("SELECT 1")
COPY_IN, COPY_OUT = encode(b"G", b"\0\0\0"), encode(b"H", b"\0\0\0")
ERROR = b.error("22012", "division by zero")
READY, IN_BLOCK, FAILED = b.ready(), b.ready(b"T"), b.ready(b"E")


def owing(*entries: Owed) -> Replies:
    replies = Replies(Prepared(10), {})
    replies.extend(list(entries))
    return replies


def got(replies: Replies, *answers: bytes) -> list[str]:
    return transcript(replies.feed(b"".join(answers)))


# -- 1, 2: forwarded, hidden, given ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        (owed.PARSE, PARSED),
        (owed.BIND, BOUND),
        (owed.CLOSE, CLOSED),
        (owed.DESCRIBE, NO_DATA),
        (owed.DESCRIBE, b.row_description(["a"])),
        (owed.DESCRIBE, encode(b"t", b"\0\0") + NO_DATA),
        (owed.EXECUTE, ROW + ROW + DONE),
        (owed.EXECUTE, ROW + SUSPENDED),
        (owed.EXECUTE, encode(b"I")),
        (owed.EXECUTE, COPY_OUT + encode(b"d", b"1\n") + encode(b"c") + b.command_complete("COPY 1")),
        (owed.SYNC, READY),
        (owed.QUERY, b.row_description(["a"]) + ROW + DONE + READY),
        (owed.QUERY, DONE + DONE + b.notice("00000", "hello") + READY),
        (owed.QUERY, encode(b"I") + READY),
        (owed.QUERY, encode(b"V", b"\0\0\0\0") + READY),
        (owed.BATCH, PARSED + BOUND + NO_DATA + DONE + READY),
    ],
)
def test_what_ends_each_entry(entry: Owed, answer: bytes) -> None:
    replies = owing(entry, owed.SYNC)
    assert replies.feed(answer) == answer
    assert list(replies.queue) == [owed.SYNC]
    hidden = Owed("hidden", entry.ends, hidden=True)
    if entry is not owed.BATCH:
        replies = owing(hidden, owed.SYNC)
        assert replies.feed(answer + READY) == READY


def test_the_very_bytes_are_forwarded_where_nothing_is_cut_out() -> None:
    replies = owing(owed.QUERY)
    data = ROW + DONE + READY
    assert replies.feed(data) is data


def test_given_answers_come_in_their_turn() -> None:
    first, second, last = (owed.made(encode(kind)) for kind in (b"1", b"3", b"1"))
    replies = owing(owed.BIND, first, second, owed.EXECUTE, last, owed.SYNC)
    assert replies.take_given() == b""
    assert got(replies, BOUND) == ["BindComplete", "ParseComplete", "CloseComplete"]
    assert got(replies, DONE + READY) == ["CommandComplete SELECT 1", "ParseComplete", "ReadyForQuery I"]
    replies.extend([first, second])
    assert transcript(replies.take_given()) == ["ParseComplete", "CloseComplete"]
    assert replies.settled


def test_given_answers_behind_ready_for_query() -> None:
    replies = owing(owed.QUERY, owed.made(PARSED), owed.BATCH, owed.made(CLOSED), owed.HIDDEN_SYNC, owed.made(PARSED))
    received = got(replies, DONE + READY, PARSED + READY, READY)
    assert received == [
        "CommandComplete SELECT 1",
        "ReadyForQuery I",
        "ParseComplete",
        "ParseComplete",
        "ReadyForQuery I",
        "CloseComplete",
        "ParseComplete",
    ]


@pytest.mark.parametrize("letter", [b"I", b"T", b"E"])
@pytest.mark.parametrize("entry", [owed.QUERY, owed.SYNC, owed.HIDDEN_QUERY])
def test_the_status_is_that_of_the_last_ready_for_query(entry: Owed, letter: bytes) -> None:
    replies = owing(entry)
    replies.feed(b.ready(letter))
    assert replies.status == letter[0]


def test_batches_are_counted_where_they_end() -> None:
    replies = Replies(Prepared(10), {})
    for entry, batch in ((owed.HIDDEN_QUERY, 2), (owed.HIDDEN_PARSE, 2), (owed.HIDDEN_SYNC, 3)):
        replies.push(entry)
        assert replies.batch == batch


# -- 3: errors -------------------------------------------------------------------------------------------------------


def test_after_an_error_the_rest_of_the_batch_is_not_owed() -> None:
    replies = owing(owed.BIND, owed.EXECUTE, owed.made(PARSED), owed.HIDDEN_PARSE, owed.SYNC, owed.BATCH)
    assert got(replies, BOUND + ERROR) == ["BindComplete", "ErrorResponse ERROR 22012 division by zero"]
    assert list(replies.queue) == [owed.SYNC, owed.BATCH]
    assert not replies.skipping


def test_queries_are_skipped_too() -> None:
    replies = owing(owed.BIND, owed.QUERY, owed.BIND, owed.QUERY, owed.SYNC, owed.QUERY)
    replies.feed(ERROR)
    assert list(replies.queue) == [owed.SYNC, owed.QUERY]
    assert got(replies, READY + DONE + READY) == ["ReadyForQuery I", "CommandComplete SELECT 1", "ReadyForQuery I"]
    assert replies.settled


@pytest.mark.parametrize("entry", [owed.QUERY, owed.BATCH, owed.SYNC, Naming("query", b"Z", b"", None, None)])
def test_an_error_in_what_ends_with_ready_for_query_skips_nothing(entry: Owed) -> None:
    replies = owing(entry, owed.BIND, owed.SYNC)
    replies.feed(ERROR + FAILED)
    assert list(replies.queue) == [owed.BIND, owed.SYNC]
    assert replies.status == ord("E")


def test_what_is_sent_after_the_error_is_skipped_up_to_sync() -> None:
    exchange = Exchange()
    replies = exchange.replies
    exchange.plan(execute())
    replies.feed(ERROR)
    skipped = parse(b"a", b"select 1") + query(b"select 1") + execute()
    for rest in (skipped, skipped[:-2]):
        assert exchange.plan(rest) == rest
        assert replies.skipping
        assert exchange.requests.open
    replies.push(owed.HIDDEN_PARSE)
    assert exchange.owed() == []
    assert exchange.requests.statements == {}
    assert exchange.plan(skipped + SYNC_MESSAGE + execute()) == skipped + SYNC_MESSAGE + execute()
    assert exchange.owed() == ["sync", "execute"]
    assert not replies.skipping


def test_a_statement_whose_parse_failed_or_was_skipped_is_not_there() -> None:
    replies = Replies(Prepared(10), {})
    refused, skipped = Statement(b"~1", b""), Statement(b"~2", b"")
    for each in (refused, skipped):
        replies.prepared.expect(each, 1, injected=True)
    replies.extend([Parsing(b"", None, refused, 1), Parsing(b"", None, skipped, 1), owed.SYNC])
    assert got(replies, ERROR)[0].startswith("ErrorResponse")
    assert list(replies.prepared) == []


def test_an_error_to_a_setting_is_not_forwarded_and_skips_nothing() -> None:
    replies = owing(owed.HIDDEN_QUERY, owed.QUERY)
    assert got(replies, ERROR + READY + DONE + READY) == ["CommandComplete SELECT 1", "ReadyForQuery I"]
    assert replies.hidden_error == ERROR[5:]
    assert replies.noted


def test_a_batch_with_the_gateways_sync_that_fails_is_noted() -> None:
    for entries in ([owed.PARSE, owed.DESCRIBE, owed.HIDDEN_SYNC], [owed.HIDDEN_SYNC]):
        replies = owing(*entries)
        assert got(replies, ERROR + READY) == ["ErrorResponse ERROR 22012 division by zero"]
        assert replies.failed_unpinned


@pytest.mark.parametrize("severity", ["FATAL", "PANIC"])
def test_an_error_with_which_the_backend_goes_away_is_noted(severity: str) -> None:
    goodbye = b.error("57P01", "the end", severity=severity)
    for entries in ([], [owed.QUERY], [owed.BIND, owed.EXECUTE]):
        replies = owing(*entries)
        assert replies.feed(goodbye) == goodbye
        assert replies.fatal == goodbye[5:]
    replies = owing(owed.QUERY)
    replies.feed(b.error("42601", "VFATAL"))
    assert replies.fatal is None


# -- 4: COPY ---------------------------------------------------------------------------------------------------------


def test_syncs_that_came_too_early_are_dropped() -> None:
    replies = owing(owed.EXECUTE, owed.SYNC, owed.SYNC)
    replies.feed(COPY_IN)
    assert replies.copying
    assert list(replies.queue) == [owed.EXECUTE]
    replies = owing(owed.QUERY, owed.SYNC)
    replies.feed(COPY_IN)
    assert list(replies.queue) == [owed.QUERY]
    replies = owing(owed.BATCH)
    replies.feed(PARSED + BOUND + COPY_IN)
    assert list(replies.queue) == [owed.EXECUTE]


def test_syncs_behind_the_end_of_the_copy_count() -> None:
    replies = owing(owed.BATCH, owed.COPY_DATA, owed.COPY_END, owed.SYNC)
    replies.feed(COPY_IN)
    assert not replies.copying
    assert list(replies.queue) == [owed.EXECUTE, owed.SYNC]
    assert replies.in_step


def test_syncs_of_which_it_cannot_be_told_are_not_trusted() -> None:
    """Behind data: if the data was bad the COPY has failed before the Sync, which is then answered."""
    replies = owing(owed.BATCH, owed.COPY_DATA, owed.SYNC)
    replies.feed(COPY_IN)
    assert not replies.in_step
    assert replies.noted


def test_data_for_no_copy_is_owed_nothing() -> None:
    replies = owing(owed.QUERY, owed.COPY_DATA, owed.COPY_END, owed.QUERY)
    assert len(got(replies, DONE + READY + DONE + READY)) == 4
    assert replies.settled


@pytest.mark.parametrize("end", [DONE + READY, ERROR + READY])
def test_a_copy_ends_with_its_answer(end: bytes) -> None:
    replies = owing(owed.QUERY)
    replies.feed(COPY_IN)
    replies.feed(end)
    assert not replies.copying
    assert replies.settled


# -- 5: cuts ---------------------------------------------------------------------------------------------------------

CONVERSATION: list[tuple[list[Owed], bytes]] = [
    ([owed.QUERY], b.row_description(["a"]) + ROW * 3 + DONE + READY),
    ([owed.HIDDEN_QUERY, owed.QUERY], b.data_row([bytes(50)]) + DONE + READY + ROW + DONE + READY),
    ([owed.HIDDEN_PARSE, owed.BIND, owed.EXECUTE, owed.SYNC], PARSED + BOUND + b.data_row([bytes(50)]) + DONE + READY),
    ([owed.BATCH], PARSED + BOUND + b.data_row([bytes(70)]) + SUSPENDED + READY),
    ([owed.HIDDEN_CLOSE, owed.made(PARSED), owed.DESCRIBE, owed.HIDDEN_SYNC], CLOSED + NO_DATA + READY),
    ([owed.BATCH], BOUND + ERROR + IN_BLOCK),
    ([owed.QUERY], b.parameter_status("TimeZone", "UTC") + b.command_complete("DISCARD ALL") + READY),
]


def play(cut: int | None, *, size: int | None = None) -> tuple[bytes, list[object]]:
    """The conversation with every answer cut at ``cut``, or into pieces of ``size``."""
    replies = Replies(Prepared(10), {})
    received = b""
    states: list[object] = []
    for entries, answer in CONVERSATION:
        replies.extend(list(entries))
        step = size or len(answer)
        ends = sorted({*range(0, len(answer), step), len(answer), *([] if cut is None else [min(cut, len(answer))])})
        for start, end in pairwise(ends):
            received += replies.feed(answer[start:end])
        assert replies.settled
        states.append((replies.status, replies.noted, dict(replies.parameters), replies.in_step))
    return received, states


WHOLE = play(None)


@pytest.mark.parametrize("cut", range(1, 150))
def test_wherever_an_answer_is_cut_the_same_comes_out(cut: int) -> None:
    assert play(cut) == WHOLE


@pytest.mark.parametrize("size", range(1, 30))
def test_into_whatever_pieces_it_is_cut(size: int) -> None:
    assert play(None, size=size) == WHOLE


def test_nothing_hidden_came_through() -> None:
    received = transcript(WHOLE[0])
    assert f"DataRow {bytes(50).decode()}" in received
    assert sum(line.startswith("DataRow") for line in received) == 3 + 1 + 1 + 1
    assert received.count("ReadyForQuery I") == 5
    assert received.count("CloseComplete") == 0


def test_rows_pass_in_parts_and_are_not_held() -> None:
    row = b.data_row([bytes(100)])
    for entries in ([owed.QUERY], [owed.EXECUTE, owed.SYNC]):
        replies = owing(*entries)
        assert replies.feed(row[:50]) == row[:50]
        assert replies.partial
        assert replies.feed(row[50:] + DONE[:7]) in (row[50:] + DONE[:7], row[50:])


def test_a_hidden_row_that_ends_with_a_chunk_takes_nothing_of_the_next() -> None:
    replies = owing(owed.HIDDEN_QUERY, owed.QUERY)
    row = b.data_row([bytes(20)])
    assert replies.feed(row[:10]) == b""
    assert replies.feed(row[10:]) == b""
    assert replies.feed(DONE + READY) == b""
    assert replies.feed(row[:10]) == row[:10]
    assert replies.feed(row[10:]) == row[10:]


# -- settings and notices --------------------------------------------------------------------------------------------


def test_settings_are_kept_and_it_is_noted_which_the_client_has_seen() -> None:
    replies = owing(owed.HIDDEN_QUERY, owed.QUERY)
    first, second = b.parameter_status("a", "1"), b.parameter_status("b", "2")
    assert replies.feed(first + second + DONE + READY) == b""
    assert replies.feed(second + DONE + READY) == second + DONE + READY
    assert replies.parameters == {"a": "1", "b": "2"}
    assert replies.parameters_changed
    assert replies.shown == {"b"}
    replies.take_notes()
    assert replies.shown == set()
    assert not replies.noted


def test_what_the_client_has_seen_before_may_be_hidden_now() -> None:
    replies = owing(owed.QUERY, owed.HIDDEN_SYNC)
    said = b.parameter_status("a", "1")
    assert replies.feed(said + READY + b.parameter_status("a", "2") + READY) == said + READY
    assert replies.shown == set()


def test_notices_to_hidden_things_are_hidden() -> None:
    notice = b.notice("00000", "truncated")
    replies = owing(owed.HIDDEN_PARSE, owed.BATCH)
    assert replies.feed(notice + PARSED) == b""
    assert replies.feed(notice + READY) == notice + READY


def test_notifications_are_for_nobody() -> None:
    notification = encode(b"A", b"\0\0\0\1channel\0\0")
    for entries in ([], [owed.QUERY], [owed.BIND, owed.EXECUTE], [owed.HIDDEN_QUERY]):
        replies = owing(*entries)
        for part in (notification, notification[:3], notification[3:9], notification[9:]):
            assert replies.feed(part) == b""
        assert not replies.partial
        assert replies.in_step


# -- out of step -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stray", [READY, DONE, PARSED, COPY_IN, ROW + DONE])
def test_an_answer_that_nobody_asked_for(stray: bytes) -> None:
    replies = owing()
    assert replies.feed(stray) == stray
    assert not replies.in_step


def test_ready_for_query_where_something_else_is_owed() -> None:
    replies = owing(owed.BIND, owed.SYNC)
    replies.feed(READY)
    assert not replies.in_step
    assert replies.settled


@pytest.mark.parametrize("stray", [b.notice("00000", "hm"), b.parameter_status("a", "1")])
def test_what_may_come_at_any_time(stray: bytes) -> None:
    replies = owing()
    assert replies.feed(stray) == stray
    assert replies.in_step


@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans())
def test_nonsense_hangs_and_raises_nothing(chunks: list[bytes], plain: bool) -> None:
    replies = owing(*([owed.BATCH] if plain else [owed.HIDDEN_PARSE, owed.BIND, owed.SYNC]))
    for chunk in chunks:
        replies.feed(chunk)


@pytest.mark.parametrize("length", [b"\0\0\0\0", b"\0\0\0\3", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfb", b"\x80\0\0\0"])
@pytest.mark.parametrize("kind", [b"D", b"Z", b"S", b"x"])
def test_a_length_that_no_message_has_does_not_hang(kind: bytes, length: bytes) -> None:
    for entries in ([], [owed.QUERY], [owed.BIND, owed.SYNC]):
        replies = owing(*entries)
        replies.feed(kind + length + bytes(30))
