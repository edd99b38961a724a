"""A session that holds a request until it is known what its statement is on this backend."""

from __future__ import annotations

import pytest

from helpers.migrating import INSERT, OIDS, SELECT, STALE, Migrating
from helpers.session_pair import Link, PairedClient, pieces, whole
from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    TERMINATE_MESSAGE,
    bind,
    describe_statement,
    execute,
    parse,
    query,
)
from pgtrunk_gateway.session.state import State

FIRST, SECOND, _ = OIDS
PREPARE = parse(b"s", SELECT) + describe_statement(b"s") + FLUSH_MESSAGE
READY = "ReadyForQuery I"


def run(name: bytes = b"s") -> bytes:
    return bind(b"", name) + execute()


def told(text: bytes = SELECT, **options: object) -> tuple[Migrating, PairedClient, Link]:
    """A client that has been told the columns, and the backend that it will have next."""
    pair = Migrating(backends=2, **options)  # type: ignore[arg-type]
    client = pair.connect()
    client.send(parse(b"s", text) + describe_statement(b"s") + FLUSH_MESSAGE)
    assert client.send(SYNC_MESSAGE) == [READY]
    pair.pool.free.sort(key=lambda backend: len(backend.replies.prepared))
    next_ = next(link for link in pair.links if link.backend is pair.pool.free[0])
    for link in pair.links:
        link.model.received.clear()
    return pair, client, next_


def held(pair: Migrating, client: PairedClient, data: bytes) -> None:
    """Sends it; nothing is carried to Postgres."""
    client.feed(data)
    assert client.session.state is State.HOLDING


@pytest.mark.parametrize("split", [whole, pieces(1), pieces(3), pieces(7)])
async def test_it_goes_on_when_it_is_what_it_was(split: object) -> None:
    pair, client, link = told(split=split)
    for _ in range(4):
        assert client.send(run() + SYNC_MESSAGE) == [
            "BindComplete",
            f"DataRow {FIRST}",
            "CommandComplete SELECT 1",
            READY,
        ]
    if split is whole:
        assert "".join(link.model.received) == "PDH" + "BES" * 2
    assert sum(link.model.received.count("H") for link in pair.links) <= 1
    pair.check_idle()


@pytest.mark.parametrize("split", [whole, pieces(1), pieces(3), pieces(7)])
async def test_it_fails_when_it_is_not_and_has_not_run(split: object) -> None:
    pair, client, _ = told(INSERT, split=split)
    pair.migrate(SECOND)
    for _ in range(5):
        assert client.send(run() + run() + SYNC_MESSAGE) == [STALE, READY]
    assert pair.inserted == 0
    pair.migrate(FIRST)
    for _ in range(2):
        assert f"DataRow {FIRST}" in client.send(run() + SYNC_MESSAGE)
    assert pair.inserted == 2
    pair.check_idle()


async def test_what_comes_behind_it_is_held_in_order() -> None:
    pair, client, _ = told()
    held(pair, client, run() + SYNC_MESSAGE)
    client.write(query(b"select 1"))
    client.write(b"".join(query(b"select %d" % number) for number in range(2000)))
    pair.pump()
    rows = [line for line in client.read() if line.startswith("DataRow")]
    assert rows == [f"DataRow {FIRST}", "DataRow 1", *(f"DataRow {number}" for number in range(2000))]
    pair.check_idle()


async def test_too_much_of_it_stops_the_client() -> None:
    pair, client, _ = told()
    held(pair, client, run() + SYNC_MESSAGE)
    client.feed(query(b"-" * 20_000))
    assert not client.transport.is_reading()
    pair.pump()
    assert client.transport.is_reading()
    assert client.read()[-1] == READY


@pytest.mark.parametrize("behind", [b"", SYNC_MESSAGE])
async def test_the_client_is_gone(behind: bytes) -> None:
    pair, client, _ = told()
    held(pair, client, run() + (behind or FLUSH_MESSAGE))
    client.vanish()
    pair.finish_cancels()
    pair.check_idle()
    other = pair.connect()
    assert "DataRow 1" in other.send(query(b"select 1"))


async def test_the_client_says_goodbye_behind_it() -> None:
    pair, client, _ = told()
    held(pair, client, run() + SYNC_MESSAGE + TERMINATE_MESSAGE)
    pair.pump()
    assert client.session.state is State.CLOSED
    pair.check_idle()


async def test_the_backend_is_lost() -> None:
    pair, client, link = told()
    held(pair, client, run() + SYNC_MESSAGE)
    link.backend.connection_lost(ConnectionResetError())
    assert client.read()[0].startswith("ErrorResponse FATAL 08006")
    assert client.session.state is State.CLOSED


async def test_a_cancel_meanwhile_is_for_this_request() -> None:
    pair, client, link = told()
    held(pair, client, run() + SYNC_MESSAGE)
    # Postgres would forget one that comes between the inspection and what is held.
    assert link.backend.is_setting
    pair.cancels.cancel(link.backend)
    pair.pump()
    assert not link.backend.is_setting
    # It is not given back before the cancel has ended.
    assert f"DataRow {FIRST}" in client.read()
    assert link.backend not in pair.pool.free
    pair.finish_cancels()
    pair.check_idle()


async def test_a_cancel_is_for_what_runs_ahead_of_an_inspection() -> None:
    pair, client, link = told()
    held(pair, client, parse(b"", SELECT) + run(b"") + run() + SYNC_MESSAGE)
    assert not link.backend.is_setting
    pair.pump()
    assert f"DataRow {FIRST}" in client.read()
    pair.check_idle()


async def test_a_parse_that_fails_is_the_answer() -> None:
    pair, client, link = told()
    held(pair, client, run() + run() + SYNC_MESSAGE + query(b"select 5"))
    link.transport.take()
    pair.answer(link, link.model.feed(parse(b"~", b"selec")))
    pair.pump()
    received = client.read()
    assert received[0] == 'ErrorResponse ERROR 42601 syntax error at or near "selec"'
    assert received.count(READY) == 2 and "DataRow 5" in received
    assert "BindComplete" not in received


@pytest.mark.parametrize("lazy_begin", [False, True])
async def test_in_a_transaction(lazy_begin: bool) -> None:
    pair, client, _ = told(lazy_begin=lazy_begin)
    client.send(query(b"begin"))
    assert client.send(run() + SYNC_MESSAGE)[-1] == "ReadyForQuery T"
    client.send(query(b"rollback"))
    pair.migrate(SECOND)
    for _ in range(3):
        client.send(query(b"begin"))
        assert client.send(run() + SYNC_MESSAGE) == [STALE, "ReadyForQuery E"]
        assert client.send(query(b"commit"))[0] == "CommandComplete ROLLBACK"
    pair.check_idle()


@pytest.mark.parametrize("moves", [False, True])
async def test_one_that_is_too_large_to_be_collected(moves: bool) -> None:
    pair, client, _ = told(b"select $1::int")
    if moves:
        statement = client.session.requests.statements[b"s"]
        statement.told = pair.context.catalogue.description(b"another")
    data = bind(b"", b"s", [b"1" * 200_000]) + execute() + SYNC_MESSAGE
    for at in range(0, len(data), 30_000):
        client.write(data[at : at + 30_000])
    client.write(query(b"select 5"))
    pair.pump()
    received = client.read()
    assert received[0] == (STALE if moves else "BindComplete")
    assert received.count(READY) == 2 and "DataRow 5" in received
    pair.check_idle()


async def test_what_is_not_asked_for_yet_holds_no_backend() -> None:
    """Nothing of it is sent, and it begins anew with what comes."""
    pair, client, link = told()
    client.feed(run())
    assert client.session.state is State.IDLE and client.session.backend is None
    assert not link.transport.take()
    for byte in SYNC_MESSAGE:
        client.feed(bytes((byte,)))
    pair.pump()
    assert client.read()[-1] == READY
    client.feed(run())
    client.vanish()
    pair.check_idle()


async def test_what_is_counted() -> None:
    pair, client, _ = told()
    before = pair.pool.stats.received
    for part in (run(), SYNC_MESSAGE, run() + SYNC_MESSAGE):
        client.send(part)
    assert pair.pool.stats.received - before == 2 * len(run() + SYNC_MESSAGE)


@pytest.mark.parametrize("split", [whole, pieces(1), pieces(7)])
async def test_who_is_pinned_prepares_as_all_do(split: object) -> None:
    """With a Sync of the gateway's in the place of Flush; what fails is skipped up to the client's own."""
    pair = Migrating(backends=1, split=split)  # type: ignore[arg-type]
    client = pair.connect()
    client.send(query(b"listen news"))
    assert client.session.backend is not None
    assert client.send(PREPARE)[-1] == f"RowDescription n:{FIRST}"
    assert client.send(SYNC_MESSAGE) == [READY]
    error = 'ErrorResponse ERROR 42601 syntax error at or near "selec"'
    assert client.send(parse(b"t", b"selec") + describe_statement(b"t") + FLUSH_MESSAGE) == [error]
    assert client.send(parse(b"t", b"select 1") + run() + FLUSH_MESSAGE) == []
    assert client.send(bind(b"", b"s", [b"1" * 100_000]) + run() + SYNC_MESSAGE) == [READY]
    assert f"DataRow {FIRST}" in client.send(run() + SYNC_MESSAGE)
    assert client.send(bind(b"", b"t") + SYNC_MESSAGE)[0].startswith("ErrorResponse ERROR 26000")


async def test_who_is_pinned_is_asked_again() -> None:
    pair = Migrating(backends=1)
    client = pair.connect()
    client.send(query(b"listen news"))
    client.send(parse(b"s", SELECT) + SYNC_MESSAGE)
    pair.migrate(SECOND)
    assert client.send(parse(b"t", SELECT) + describe_statement(b"t") + FLUSH_MESSAGE) == [
        "ParseComplete",
        "ParameterDescription []",
        f"RowDescription n:{SECOND}",
    ]
    assert client.send(SYNC_MESSAGE + run(b"t") + SYNC_MESSAGE)[2] == f"DataRow {SECOND}"
