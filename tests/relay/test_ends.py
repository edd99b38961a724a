"""How a session ends, in each state and each way; and that its backend is as new afterwards, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from helpers.conversations import FLUSH, SYNC, once
from helpers.session_pair import PairedClient, SessionPair
from helpers.waiting import until
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    TERMINATE_MESSAGE,
    bind,
    copy_data,
    describe_statement,
    execute,
    parse,
    query,
)
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.relay import lifecycle, measuring
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

INSERT = b"insert into t values (1)"
LARGE = query(b"select '" + bytes(100_000) + b"'")

BUSY: dict[str, list[bytes]] = {
    "in a transaction": [query(b"begin"), query(INSERT)],
    "in a failed transaction": [query(b"begin"), query(INSERT), query(b"select 1/0")],
    "in a transaction of the extended protocol": [once(b"begin") + once(INSERT) + SYNC],
    "in an open batch": [once(INSERT) + FLUSH],
    "in an open batch that has failed": [once(INSERT) + once(b"select 1/0") + FLUSH],
    "in an open batch inside a transaction": [query(b"begin"), once(INSERT) + FLUSH],
    "in an open batch that is still to be read": [once(INSERT)],
    "in a query": [query(INSERT + b"; select pg_sleep(60)")],
    "in a batch": [once(INSERT) + once(b"select pg_sleep(60)") + SYNC],
    "in an open batch that runs": [once(INSERT) + once(b"select pg_sleep(60)")],
    "in a pipeline": [query(INSERT + b"; select pg_sleep(60)") + once(b"select 1/0") + SYNC],
    "in a copy": [query(b"copy t from stdin"), copy_data(b"1\n")],
    "in a copy of the extended protocol": [once(b"copy t from stdin") + SYNC, copy_data(b"1\n")],
    "in a copy with its sync to come": [once(b"copy t from stdin") + FLUSH, copy_data(b"1\n")],
    "in a copy that has failed": [once(b"copy t from stdin") + SYNC, copy_data(b"x\n")],
    "in a copy inside a transaction": [query(b"begin"), once(b"copy t from stdin") + SYNC, copy_data(b"1\n")],
    "behind a copy that waits for its sync": [
        once(b"copy t from stdin") + SYNC,
        copy_data(b"1\n") + COPY_DONE_MESSAGE + FLUSH,
    ],
    "in two copies": [query(b"copy t from stdin; copy t from stdin"), copy_data(b"1\n") + COPY_DONE_MESSAGE],
    "in a large message": [query(b"begin"), query(INSERT), LARGE[:50_000]],
    "in much copy data": [query(b"copy t from stdin"), copy_data(bytes(100_000))[:50_000]],
}

Ending = Callable[[PairedClient], object]
ENDINGS: dict[str, Ending] = {
    "vanishes": PairedClient.vanish,
    "says no more": lambda client: client.session.eof_received(),
    "leaves": lambda client: client.send(TERMINATE_MESSAGE),
    "talks nonsense": lambda client: client.send(encode(b"y")),
    "is ended": lambda client: client.session.kill(),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("lazy_begin", [False, True])
async def test_nothing_is_left_of_a_session_that_ends(lazy_begin: bool, busy: str, ending: str) -> None:
    pair = SessionPair(backends=1, lazy_begin=lazy_begin)
    (link,) = pair.links
    client = pair.connect()
    for step in BUSY[busy]:
        client.send(step)
    ENDINGS[ending](client)
    if "large" in busy or "much" in busy:
        # Other octets than a Terminate could be taken for the rest.
        if ending in ("leaves", "talks nonsense"):
            return
        assert pair.pool.gone == ["client left in the middle of a message"]
        assert link.transport.aborted
        assert link.transport.take() == b""
    else:
        pair.pump()
        pair.finish_cancels()
        pair.wake()
        assert not pair.pool.gone
        pair.check_idle()
    assert client.session.state is State.CLOSED
    assert client.transport.closing
    assert pair.context.admitted == 0
    committed = ["in a query", "in a batch", "in a pipeline"] if ending == "leaves" else []
    assert pair.store.tables.get("t", []) == ([1] if busy in committed else [])
    # Nothing of it reaches the next.
    link = link if link.backend.state is BackendState.OPEN else pair.open_backend()
    other = pair.connect()
    assert other.send(once(b"select 5") + SYNC)[3] == "DataRow 5"


@pytest.mark.parametrize("busy", [name for name in BUSY if "large" not in name and "much" not in name])
async def test_the_next_session_gets_the_backend_while_it_recovers(busy: str) -> None:
    """In its turn, and only when it is clean: ScriptedPool.give looks."""
    pair = SessionPair(backends=1)
    client, other = pair.connect(), pair.connect()
    for step in BUSY[busy]:
        client.send(step)
    client.vanish()
    other.write(query(b"select count(*) from t"))
    pair.pump()
    pair.finish_cancels()
    assert other.read() == ["RowDescription count:20", "DataRow 0", "CommandComplete SELECT 1", "ReadyForQuery I"]


async def test_a_query_that_vanishes_before_postgres_has_seen_it() -> None:
    """COPY that has not begun when its client goes: its early Sync is ignored, ours is not."""
    for sent in (query(b"copy t from stdin"), once(b"copy t from stdin") + SYNC, once(b"copy t from stdin") + SYNC * 3):
        pair = SessionPair(backends=1)
        client = pair.connect()
        client.feed(sent)
        client.vanish()
        pair.pump()
        pair.finish_cancels()
        pair.check_idle()


@pytest.mark.parametrize(
    "runs", [query(b"select pg_sleep(60)"), once(b"select pg_sleep(60)") + SYNC, once(b"select pg_sleep(60)")]
)
@pytest.mark.parametrize("together", [True, False])
async def test_what_runs_ahead_of_half_a_message_is_cancelled_too(runs: bytes, together: bool) -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client, other = pair.connect(), pair.connect()
    half = LARGE[:50_000]
    if together:
        client.feed(runs + half)
    else:
        client.feed(runs)
        client.feed(half)
    pair.pump()
    client.vanish()
    assert pair.cancels.under_way == [link.backend]
    assert link.backend.runs
    assert not pair.pool.gone
    pair.finish_cancels()
    # Then it is given up, since the rest of the message will never come.
    assert pair.pool.gone == ["client left in the middle of a message"]
    assert link.transport.aborted
    pair.open_backend()
    assert other.send(query(b"select 1"))[1] == "DataRow 1"


async def test_answers_that_postgres_keeps_to_itself_are_not_waited_for() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.feed(parse(b"", b"select $1::text") + bind(b"", b"", [b"x" * 100_000])[:50_000])
    pair.pump()
    client.vanish()
    assert pair.pool.gone == ["client left in the middle of a message"]


async def test_a_query_that_does_not_end_ahead_of_half_a_message() -> None:
    pair = SessionPair(backends=1, cancel_wait_timeout=0.02)
    client = pair.connect()
    client.feed(query(b"select pg_sleep(60)") + LARGE[:50_000])
    pair.pump()
    client.vanish()
    await until(lambda: pair.pool.gone)
    assert pair.links[0].transport.aborted


async def test_what_runs_is_cancelled_when_the_client_vanished_and_not_when_it_left() -> None:
    for ending, cancels in ((PairedClient.vanish, 1), (ENDINGS["leaves"], 0)):
        pair = SessionPair(backends=1)
        client = pair.connect()
        client.send(query(b"select pg_sleep(60)"))
        ending(client)
        assert len(pair.cancels.under_way) == cancels


async def test_what_comes_behind_terminate_is_for_nobody() -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.send(query(INSERT) + TERMINATE_MESSAGE + query(INSERT) + encode(b"p"))
    assert pair.store.tables == {"t": [1]}
    assert link.model.received[0] == "Q"
    assert "X" not in link.model.received
    pair.check_idle()


@pytest.mark.parametrize("ending", ENDINGS)
async def test_ends_of_sessions_without_a_backend(ending: str) -> None:
    """IDLE, BEGUN, WAITING, SKIPPING."""
    for state in (State.IDLE, State.BEGUN, State.WAITING, State.SKIPPING):
        pair = SessionPair(backends=0, lazy_begin=True)
        client = pair.connect()
        if state is State.BEGUN:
            client.send(query(b"begin"))
        elif state is not State.IDLE:
            client.send(once(INSERT))
        if state is State.SKIPPING:
            client.session.cancel()
        assert client.session.state is state
        if state is State.WAITING and ending in ("leaves", "talks nonsense"):
            continue
        ENDINGS[ending](client)
        if state is State.SKIPPING and ending == "talks nonsense":
            client.send(encode(b"y"))
        assert client.session.state.name == "CLOSED"
        assert pair.context.admitted == 0
        assert not pair.pool.waiting


async def test_the_end_comes_once() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(query(b"begin"))
    for ending in ENDINGS.values():
        ending(client)
    client.session.connection_lost(None)
    assert pair.context.admitted == 0
    pair.pump()
    pair.check_idle()


# -- nonsense --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (encode(b"y"), "invalid frontend message: type 121, length 4"),
        (b"Q\0\0\0\3", "invalid frontend message: type 81, length 3"),
        (b"Q\xff\xff\xff\xff", "invalid frontend message: type 81, length -1"),
        (encode(b"p", b"secret\0"), "invalid message 'p'"),
    ],
)
async def test_what_no_client_may_say(said: bytes, words: str) -> None:
    pair = SessionPair(backends=1, max_packet_size=1 << 20)
    client = pair.connect()
    (told,) = client.send(said)
    assert told.startswith("ErrorResponse FATAL 08P01 ") and words in told
    assert client.transport.closing
    pair.pump()
    pair.check_idle()


async def begins_what_is_too_large(pair: SessionPair) -> PairedClient:
    """And is told so."""
    client = pair.connect()
    client.write(query(b"select '" + b"x" * 1_000_000 + b"'")[:5] + b"x" * 100_000)
    client.session.pause_writing()
    pair.pump()
    (told,) = client.read()
    assert told.startswith("ErrorResponse FATAL 54000 ")
    pair.check_idle()
    assert not client.transport.closing
    return client


async def test_a_message_that_is_too_large_is_read_to_its_end() -> None:
    """Then its client has written it, and is ready to read why it was in vain."""
    pair = SessionPair(backends=1, max_packet_size=1000)
    client = await begins_what_is_too_large(pair)
    for _ in range(9):
        assert client.send(b"x" * 100_000) == []
        assert not client.transport.ended
    assert client.send(b"x" * 100 + SYNC + query(INSERT)) == []
    assert client.transport.ended and not client.transport.closing
    assert client.send(query(INSERT)) == []
    assert pair.store.tables == {}
    # What it leaves behind is no more than its connection.
    assert client.session.eof_received() is False
    client.session.connection_lost(None)
    assert not pair.context.sessions


async def test_nobody_waits_long_for_the_rest_of_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_PATIENCE", 0.01)
    pair = SessionPair(backends=1, max_packet_size=1000)
    client = await begins_what_is_too_large(pair)
    await until(lambda: client.transport.aborted)
    other = await begins_what_is_too_large(pair)
    other.session.kill()
    assert other.transport.aborted


async def test_what_was_said_before_nonsense_is_not_left_half_done() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(once(INSERT) + encode(b"p", b"x\0"))
    pair.finish_cancels()
    assert pair.store.tables == {}
    pair.check_idle()


# -- the backend ends ------------------------------------------------------------------------------------------------

LOST = "ErrorResponse FATAL 08006 server connection was lost"


@pytest.mark.parametrize("busy", BUSY)
async def test_a_session_whose_backend_is_lost_hears_of_it(busy: str) -> None:
    pair = SessionPair(backends=1, lazy_begin=True)
    (link,) = pair.links
    client = pair.connect()
    for step in BUSY[busy]:
        client.send(step)
    link.backend.connection_lost(ConnectionResetError("reset"))
    assert client.read() == [LOST]
    assert client.session.state is State.CLOSED
    assert pair.context.admitted == 0
    assert pair.pool.gone == ["server conn crashed? (reset)"]


async def test_a_session_that_holds_for_the_gateways_sync_hears_of_it_too() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.feed(parse(b"s", b"select 1") + describe_statement(b"s") + FLUSH)
    assert client.session.state is State.HOLDING
    pair.links[0].backend.connection_lost(None)
    assert client.read() == [LOST]


@pytest.mark.parametrize("busy", ["in a transaction", "in a query", "in an open batch", "in a batch"])
async def test_what_postgres_said_itself_is_not_said_again(busy: str) -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    for step in BUSY[busy]:
        client.send(step)
    goodbye = server.error("57P01", "terminating connection due to administrator command", severity="FATAL")
    for at in range(0, len(goodbye), 5):
        link.backend.data_received(goodbye[at : at + 5])
    link.backend.connection_lost(None)
    assert client.read() == ["ErrorResponse FATAL 57P01 terminating connection due to administrator command"]
    assert client.session.state is State.CLOSED


async def test_a_message_out_of_turn_costs_the_backend_and_no_more() -> None:
    """A server that answers what it was not asked: the session goes on, nobody else gets that backend."""
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.feed(query(b"select 1"))
    link.backend.data_received(link.model.feed(link.transport.take()) + server.ready())
    assert client.read()[3:] == ["ReadyForQuery I", "ReadyForQuery I"]
    assert pair.pool.gone == ["server answers cannot be told apart"]
    assert client.session.state is State.IDLE


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["in a transaction", "in a failed transaction", "in an open batch"])
async def test_idle_transaction_timeout(busy: str) -> None:
    pair = SessionPair(backends=1, terms=Terms(idle_transaction_timeout=0.02))
    client = pair.connect()
    for step in BUSY[busy]:
        client.send(step)
    client.read()
    await until(lambda: client.session.state is State.CLOSED)
    assert client.read() == ["ErrorResponse FATAL 25P03 idle transaction timeout"]
    pair.pump()
    pair.check_idle()


@pytest.mark.parametrize("busy", ["in a query", "in a copy"])
async def test_who_runs_something_is_not_idle(busy: str) -> None:
    pair = SessionPair(backends=1, terms=Terms(idle_transaction_timeout=0.01))
    client = pair.connect()
    client.send(query(b"begin"))
    for step in BUSY[busy]:
        client.send(step)
    await asyncio.sleep(0.05)
    assert client.session.state is State.LEASED


async def test_a_transaction_that_goes_on_in_time_is_left_alone() -> None:
    pair = SessionPair(backends=1, terms=Terms(idle_transaction_timeout=0.2))
    client = pair.connect()
    client.send(query(b"begin"))
    for _ in range(8):
        await asyncio.sleep(0.05)
        assert client.send(query(b"select 1"))[-1] == "ReadyForQuery T"
    client.send(query(b"commit"))
    await asyncio.sleep(0.3)
    assert client.session.state is State.IDLE


async def test_a_client_that_does_not_take_its_last_message_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_LINGER", 0.01)
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.session.kill()
    assert client.transport.closing
    assert not client.transport.aborted
    await until(lambda: client.transport.aborted)


async def test_one_that_does_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_LINGER", 0.01)
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.session.kill()
    client.session.connection_lost(None)
    await asyncio.sleep(0.05)
    assert not client.transport.aborted
    assert not pair.context.sessions


# -- the gateway stops -----------------------------------------------------------------------------------------------

FATAL = "ErrorResponse FATAL 57P01 server shutting down"


async def test_a_stopping_gateway_ends_sessions_outside_a_transaction() -> None:
    pair = SessionPair(backends=1)
    idle, busy, waiting = pair.connect(), pair.connect(), pair.connect()
    busy.send(query(b"begin"))
    waiting.send(query(b"select 1"))
    pair.context.closing_idle = True
    for client in (idle, busy, waiting):
        client.session.end_if_idle()
    assert (idle.read(), busy.read(), waiting.read()) == ([FATAL], [], [FATAL])
    assert busy.send(query(b"commit")) == ["CommandComplete COMMIT", "ReadyForQuery I", FATAL]
    pair.check_idle()


async def test_a_session_that_the_gateway_synced_ends_with_that() -> None:
    pair = SessionPair(backends=1)
    client = pair.connect()
    pair.context.closing_idle = True
    received = client.send(parse(b"s", b"select 1") + describe_statement(b"s") + FLUSH)
    assert received[-1] == FATAL
    assert client.session.state is State.CLOSED
    pair.check_idle()


async def test_a_request_that_was_refused_while_the_gateway_stops() -> None:
    pair = SessionPair(backends=0)
    client = pair.connect()
    client.send(bind(b"", b"") + execute())
    client.session.cancel()
    assert client.session.state is State.SKIPPING
    client.session.end_if_idle()
    assert client.read()[-1] == FATAL
    client.session.refuse(ShuttingDown())
    assert client.read() == []
