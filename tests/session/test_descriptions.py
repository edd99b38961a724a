"""What counts of what a client is told of a statement, and who shares a statement with whom by it."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator

import pytest

from helpers.conversations import run
from helpers.exchange import Exchange
from helpers.transcript import transcript
from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import SYNC_MESSAGE, describe_statement, parse
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.descriptions import Description, key_of
from pgtrunk_gateway.session.owed import Describing
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.requests import Requests
from pgtrunk_gateway.session.statements import Catalogue, Prepared

BODY = b"select n from t\0\0\0"
NO_DATA, PARSED, BOUND, CLOSED = (encode(kind) for kind in (b"n", b"1", b"2", b"3"))
READY = b.ready()


def parameters(*oids: int) -> bytes:
    return encode(b"t", struct.pack(f"!h{len(oids)}I", len(oids), *oids))


def column(name: bytes, oid: int, *, table: int = 0, number: int = 0, size: int = 4, modifier: int = -1) -> bytes:
    return name + b"\0" + struct.pack("!IhIhih", table, number, oid, size, modifier, 0)


def columns(*each: bytes) -> bytes:
    return encode(b"T", struct.pack("!h", len(each)) + b"".join(each))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


# -- the key -----------------------------------------------------------------------------------------------------------

ONE = key_of(parameters(23), columns(column(b"n", 23, table=1, number=1)))


@pytest.mark.parametrize(
    "other",
    [
        key_of(parameters(20), columns(column(b"n", 23))),
        key_of(parameters(), columns(column(b"n", 23))),
        key_of(parameters(23, 23), columns(column(b"n", 23))),
        key_of(parameters(23), columns(column(b"m", 23))),
        key_of(parameters(23), columns(column(b"n", 700))),
        key_of(parameters(23), columns(column(b"n", 23, modifier=5))),
        key_of(parameters(23), columns(column(b"n", 23), column(b"n", 23))),
        key_of(parameters(23), columns()),
        key_of(parameters(23), NO_DATA),
    ],
)
def test_types_and_names_count(other: bytes) -> None:
    assert other != ONE


def test_of_which_table_it_is_does_not() -> None:
    assert key_of(parameters(23), columns(column(b"n", 23, table=7, number=4))) == ONE


def test_nothing_at_all_is_nothing_to_be_taken_for_something_else() -> None:
    assert Description(key_of(parameters(), NO_DATA)).is_empty
    assert not Description(key_of(parameters(), columns())).is_empty
    assert not Description(key_of(parameters(23), NO_DATA)).is_empty


def test_what_is_no_description() -> None:
    with pytest.raises(ValueError, match="not found"):
        key_of(parameters(), encode(b"T", b"\0\1n"))


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_equal_descriptions_are_the_same_while_somebody_has_them() -> None:
    catalogue = Catalogue()
    one = catalogue.description(ONE)
    assert catalogue.description(bytes(bytearray(ONE))) is one
    was = id(one)
    del one
    gc.collect()
    assert catalogue.description(ONE[:-1]) is not catalogue.description(ONE), was


def test_who_is_told_otherwise_has_another_statement() -> None:
    catalogue = Catalogue()
    first, second = catalogue.description(b"1"), catalogue.description(b"2")
    known = catalogue.intern(1, BODY)
    assert catalogue.tell(1, known, first) is known
    assert catalogue.tell(1, known, first) is known and known.told is first
    other = catalogue.tell(1, known, second)
    assert other is not known and other.name != known.name and other.body == BODY
    assert (known.told, other.told) == (first, second)
    assert catalogue.intern(1, BODY) is other, "that was the last word of a backend"
    assert catalogue.tell(1, known, second) is other, "there is one for each description"
    assert catalogue.tell(1, other, first) is known
    assert catalogue.as_told(1, known, second) is other
    assert catalogue.intern(1, BODY) is known


def test_who_is_told_the_same_after_all_shares_it_again() -> None:
    catalogue = Catalogue()
    description = catalogue.description(b"1")
    known = catalogue.tell(1, catalogue.intern(1, BODY), description)
    moves = catalogue.moves
    catalogue.retire(1, known)
    assert catalogue.moves == moves + 1
    catalogue.retire(1, known)
    assert catalogue.moves == moves + 1
    anew = catalogue.intern(1, BODY)
    assert anew is not known
    assert catalogue.tell(1, anew, description) is known


# -- what a backend has ------------------------------------------------------------------------------------------------


def test_a_backend_serves_what_it_describes_as_it_was_told() -> None:
    catalogue, prepared = Catalogue(), Prepared(10)
    statement = catalogue.intern(1, BODY)
    assert not prepared.serves(statement, 1)
    prepared.expect(statement, 1, injected=True)
    prepared.confirm(statement, 1)
    assert prepared.serves(statement, 2)
    first, second = catalogue.description(b"1"), catalogue.description(b"2")
    statement.told = first
    assert not prepared.serves(statement, 2) and prepared.usable(statement, 2)
    prepared.described(statement, 2, second)
    assert not prepared.serves(statement, 3)
    prepared.described(statement, 3, first)
    assert prepared.serves(statement, 4)
    loses: list[Callable[[], None]] = [
        lambda: prepared.suspect(statement),
        lambda: prepared.expect(statement, 5, injected=False),
        prepared.clear,
    ]
    for lose in loses:
        prepared.expect(statement, 4, injected=True)
        prepared.confirm(statement, 4)
        prepared.described(statement, 4, first)
        assert prepared.seen(statement) is first
        lose()
        assert prepared.seen(statement) is None
        assert not prepared.serves(statement, 6)


def test_the_description_of_one_that_is_parsed_again_behind_it_does_not_count() -> None:
    prepared, catalogue = Prepared(10), Catalogue()
    statement = catalogue.intern(1, BODY)
    prepared.expect(statement, 1, injected=True)
    prepared.confirm(statement, 1)
    prepared.expect(statement, 3, injected=True)
    prepared.described(statement, 2, catalogue.description(b"1"))
    assert prepared.seen(statement) is None
    prepared.described(statement, 3, catalogue.description(b"1"))
    assert prepared.seen(statement) is not None


def test_what_has_to_make_room_is_not_known_any_more() -> None:
    prepared, catalogue = Prepared(1), Catalogue()
    one, two = catalogue.intern(1, BODY), catalogue.intern(2, BODY)
    for batch, statement in enumerate((one, two), 1):
        prepared.expect(statement, batch, injected=True)
        prepared.confirm(statement, batch)
        prepared.described(statement, batch, catalogue.description(b"1"))
    assert prepared.evict(3) == [one]
    prepared.kept(one, 3)
    assert prepared.seen(one) is None and prepared.seen(two) is not None


def test_what_was_parsed_before_something_moved_is_old() -> None:
    prepared, catalogue = Prepared(10), Catalogue()
    one, two = catalogue.intern(1, BODY), catalogue.intern(2, BODY)
    prepared.expect(one, 1, injected=True)
    assert not prepared.is_old(one, 0)
    assert prepared.is_old(one, 1) and not prepared.is_old(two, 1)
    prepared.expect(two, 2, injected=True)
    prepared.expect(one, 2, injected=True)
    assert not prepared.is_old(one, 1) and not prepared.is_old(two, 1)
    assert prepared.is_old(one, 2) and prepared.is_old(two, 2)
    for statement in (one, two):
        prepared.confirm(statement, 2)
    prepared.clear()
    assert not prepared.is_old(one, 2), "it need not be remembered any more"


# -- the answers -------------------------------------------------------------------------------------------------------


def telling(*, hidden: bool = False) -> tuple[Replies, Requests]:
    requests = Requests(Catalogue())
    replies = Replies(Prepared(10), {})
    replies.asker = requests
    statement = requests.statements[b"s"] = requests.catalogue.intern(1, BODY)
    replies.prepared.expect(statement, 1, injected=True)
    replies.prepared.confirm(statement, 1)
    replies.extend([Describing(b"" if hidden else b"s", statement, 1, hidden=hidden), owed.SYNC])
    return replies, requests


@pytest.mark.parametrize("size", [1, 2, 7, 100, 4000, 1 << 20])
@pytest.mark.parametrize("hidden", [False, True])
def test_descriptions_of_any_length_in_any_pieces(size: int, hidden: bool) -> None:
    count = 1664 if size > 2 else 30
    data = parameters(*range(count)) + columns(*(column(b"column_%d" % number, 23) for number in range(count)))
    replies, requests = telling(hidden=hidden)
    assert b"".join(replies.feed(piece) for piece in pieces(data + READY, size)) == (b"" if hidden else data) + READY
    statement = requests.statements[b"s"]
    seen = replies.prepared.seen(statement)
    assert seen is not None and seen.key == key_of(
        parameters(*range(count)), columns(*(column(b"column_%d" % number, 23) for number in range(count)))
    )
    assert statement.told is (None if hidden else seen)
    assert (b"s" in requests.described) is not hidden


@pytest.mark.parametrize("size", [1, 1000])
def test_what_comes_before_an_error_is_told_too(size: int) -> None:
    replies, requests = telling()
    data = parameters(23) + b.error("57014", "canceling statement") + READY
    assert b"".join(replies.feed(piece) for piece in pieces(data, size)) == data
    assert requests.described == set() and requests.statements[b"s"].told is None


def test_notices_pass_in_between() -> None:
    replies, _ = telling()
    notice = b.notice("00000", "hello")
    assert transcript(replies.feed(parameters() + notice + NO_DATA)) == [
        "NoticeResponse NOTICE 00000 hello",
        "ParameterDescription []",
        "NoData",
    ]


def test_what_is_no_description_is_no_answer() -> None:
    replies, _ = telling()
    replies.feed(parameters() + encode(b"T", b"\0\1n"))
    assert not replies.in_step


def test_nobody_is_there_to_be_told() -> None:
    replies, requests = telling()
    replies.asker = None
    replies.feed(parameters() + columns(column(b"n", 23)) + READY)
    assert replies.settled and requests.described == set()


# -- what has moved ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "moves"),
    [
        *(
            (tag, True)
            for tag in ("ALTER TABLE", "DROP TABLE", "ALTER TYPE", "DROP TYPE", "DROP VIEW", "DROP FUNCTION")
        ),
        *((tag, True) for tag in ("ALTER FUNCTION", "DROP MATERIALIZED VIEW", "ALTER TEXT SEARCH CONFIGURATION")),
        *((tag, False) for tag in ("SELECT 1", "SELECT 10000", "INSERT 0 1", "INSERT 0 1000000", "DELETE 1000000")),
        *(
            (tag, False)
            for tag in ("CREATE TABLE", "UPDATE 123456", "DEALLOCATE ALL", "TRUNCATE TABLE", "SET", "GRANT")
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 6, 1000])
@pytest.mark.parametrize("entry", [owed.QUERY, owed.BATCH, owed.EXECUTE])
def test_tags_that_say_that_something_was_altered_or_dropped(
    tag: str, moves: bool, size: int, entry: owed.Owed
) -> None:
    replies = Replies(Prepared(10), {})
    replies.extend([entry] if entry is not owed.EXECUTE else [entry, owed.SYNC])
    data = b.command_complete(tag) + READY
    assert b"".join(replies.feed(piece) for piece in pieces(data, size)) == data
    assert replies.moved is moves
    replies.take_notes()
    assert replies.noted is moves, "until the transaction has ended"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (b.error("42883", "operator does not exist: text = integer"), True),
        (b.error("42804", 'column "n" is of type text but expression is of type integer'), True),
        (b.error("XX000", "cache lookup failed for type 12345"), True),
        (b.error("XX000", "something else"), False),
        (b.error("23505", "duplicate key"), False),
    ],
)
@pytest.mark.parametrize("shape", [0, 2])
def test_what_fails_by_its_types_is_parsed_anew(error: bytes, again: bool, shape: int) -> None:
    exchange = Exchange()
    for name, text in ((b"a", b"select 1"), (b"b", b"select 2")):
        exchange.send(parse(name, text) + SYNC_MESSAGE)
    exchange.plan(run(b"a") + SYNC_MESSAGE, shape)
    exchange.feed(error + READY)
    assert exchange.kinds(run(b"a") + SYNC_MESSAGE) == ("CPBES" if again else "BES")
    exchange.feed(*([CLOSED, PARSED] if again else []), BOUND, b.command_complete("SELECT 1"), READY)
    # Where it is known which one it was, that alone.
    assert exchange.kinds(run(b"b") + SYNC_MESSAGE) == ("CPBES" if again and not shape else "BES")


def test_what_is_parsed_or_described_after_that_is_parsed_anew() -> None:
    exchange = Exchange()
    again = parse(b"b", b"select 1") + SYNC_MESSAGE
    exchange.send(parse(b"a", b"select 1") + describe_statement(b"a") + SYNC_MESSAGE)
    assert exchange.kinds(again) == "S"
    exchange.feed(READY)
    exchange.requests.catalogue.moves += 1
    exchange.requests.statements.pop(b"b")
    assert exchange.kinds(again) == "CPS"
    exchange.feed(CLOSED, PARSED, READY)
    exchange.send(describe_statement(b"a") + SYNC_MESSAGE)
    exchange.requests.statements.pop(b"b")
    assert exchange.kinds(again) == "S"
    exchange.feed(READY)
    exchange.requests.catalogue.moves += 1
    assert exchange.kinds(describe_statement(b"a") + SYNC_MESSAGE) == "CPDS"
