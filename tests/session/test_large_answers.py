"""Answers of any length beside rows: an error, a notice, what a function call gives. They pass in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.cutting import BEGINNING
from pgtrunk_gateway.session.inquiry import Inquiry
from pgtrunk_gateway.session.owed import Applying, Owed
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.sql.traces import Pin
from pgtrunk_gateway.session.statements import Prepared

SIZE: Final = 300_000
TEXT: Final = "x" * SIZE
ERROR: Final = b.error("22P02", TEXT, detail=TEXT)
FATAL: Final = b.error("XX000", TEXT, severity="FATAL")
NOTICE: Final = b.notice("00000", TEXT)
RESULT: Final = encode(b"V", SIZE.to_bytes(4, "big") + bytes(SIZE))
READY: Final = b.ready()
PARSED: Final = b.PARSE_COMPLETE_MESSAGE

SIZES: Final = [999, BEGINNING, 64 << 10]
in_pieces = pytest.mark.parametrize("size", SIZES)


def owing(*entries: Owed) -> Replies:
    replies = Replies(Prepared(10), {})
    replies.extend([*entries])
    return replies


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def taken(replies: Replies, data: bytes, size: int) -> bytes:
    """What the session gets; and never is more held back than the beginning of a message, and what came last."""
    got = b""
    for piece in pieces(data, size):
        got += replies.feed(piece)
        assert sum(map(len, replies._carry)) < BEGINNING + size
    assert not replies.partial
    return got


@in_pieces
@pytest.mark.parametrize(
    "entries",
    [[owed.QUERY], [owed.BATCH], [owed.SYNC], [owed.BIND, owed.EXECUTE, owed.SYNC], [owed.PARSE, owed.BIND, owed.SYNC]],
    ids=repr,
)
@pytest.mark.parametrize("said", [NOTICE + ERROR, ERROR, NOTICE + NOTICE + ERROR + NOTICE], ids=["NE", "E", "NNEN"])
def test_they_pass_as_they_are(entries: list[Owed], said: bytes, size: int) -> None:
    replies = owing(*entries)
    assert taken(replies, said + READY, size) == said + READY
    assert replies.settled
    assert replies.in_step


@in_pieces
@pytest.mark.parametrize("entries", [[owed.QUERY], [owed.HIDDEN_PARSE, owed.QUERY]], ids=repr)
def test_the_result_of_a_function_call(entries: list[Owed], size: int) -> None:
    replies = owing(*entries)
    said = NOTICE + RESULT + READY
    assert taken(replies, (PARSED if len(entries) > 1 else b"") + said, size) == said
    assert replies.settled


@in_pieces
@pytest.mark.parametrize("entry", [owed.HIDDEN_QUERY, Applying("")], ids=repr)
def test_what_nobody_gets_is_left_out_and_its_beginning_is_known(entry: Any, size: int) -> None:
    replies = owing(Applying("") if isinstance(entry, Applying) else entry, owed.QUERY)
    replies.asker = object()  # type: ignore[assignment]
    row = b.data_row([b"1"]) + b.command_complete("SELECT 1")
    assert taken(replies, NOTICE + ERROR + READY + row + READY, size) == row + READY
    assert replies.hidden_error is not None
    fields = b.parse_error(replies.hidden_error)
    assert (fields.severity, fields.sqlstate) == ("ERROR", "22P02")
    assert fields.message
    assert TEXT.startswith(fields.message)
    assert len(fields.message) <= BEGINNING + size


@in_pieces
def test_one_that_is_refused_in_the_gateways_words(size: int) -> None:
    message = b.error("0A000", "no")
    replies = owing(owed.Refused(b"Z", None, message))
    assert taken(replies, ERROR + READY, size) == message + READY


@in_pieces
def test_one_with_which_the_server_goes_away(size: int) -> None:
    replies = owing(owed.QUERY)
    assert taken(replies, FATAL, size) == FATAL
    assert replies.fatal is not None
    fields = b.parse_error(replies.fatal)
    assert (fields.severity, TEXT.startswith(fields.message)) == ("FATAL", True)


@in_pieces
def test_what_has_to_be_known_as_a_whole_is_collected(size: int) -> None:
    """The value of a setting: once all of it is there, and it is not looked at before."""
    said = b.parameter_status("search_path", TEXT)
    replies = owing(owed.QUERY)
    got = [replies.feed(piece) for piece in pieces(said, size)]
    assert got == [b""] * (len(got) - 1) + [said]
    assert replies.parameters["search_path"] == TEXT
    assert replies.feed(READY) == READY


def test_between_two_of_them_there_is_nothing_to_settle() -> None:
    """The rest of an error belongs to whoever had the error."""
    replies = owing(owed.QUERY)
    replies.feed(READY[:0] + ERROR[: BEGINNING + 1])
    assert not replies.settled
    assert replies.feed(ERROR[BEGINNING + 1 :]) == ERROR[BEGINNING + 1 :]
    assert not replies.partial
    assert replies.feed(READY) == READY
    assert replies.settled


@in_pieces
@pytest.mark.parametrize("ahead", [b"", b.data_row([b"x" * SIZE])], ids=["alone", "behind a row"])
def test_what_is_said_beside_an_answer_that_the_gateway_has_asked_for(ahead: bytes, size: int) -> None:
    """It is none of the rows."""
    asking = owed.Asking(Inquiry(("a",), Pin.NONE, "app"))
    replies = owing(asking)
    assert taken(replies, ahead + NOTICE + ERROR + READY, size) == b""
    assert [len(row) for row in asking.rows] == ([len(ahead) - 5] if ahead else [])
    assert asking.failed
    assert replies.settled
