"""What may not last too long, each from the event with which it begins; and that nothing else ends by it."""

from __future__ import annotations

import asyncio

import pytest

from helpers.conversations import FLUSH, SYNC, once
from helpers.session_pair import PairedClient, SessionPair
from helpers.waiting import until
from pgtrunk.wire.frontend import TERMINATE_MESSAGE, copy_data, query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SHORT, LONG = 0.02, 60.0
SLEEP = query(b"select pg_sleep(60)")


async def ended(pair: SessionPair, client: PairedClient) -> str:
    await until(lambda: client.session.state is State.CLOSED)
    pair.pump()
    pair.finish_cancels()
    pair.check_idle()
    return client.read()[-1]


# -- query_timeout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction", "session", "statement"])
@pytest.mark.parametrize("request_", [SLEEP, once(b"select pg_sleep(60)") + SYNC, query(b"copy t from stdin")])
async def test_a_query_that_takes_too_long_is_cancelled_and_ends_the_session(mode: str, request_: bytes) -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode=mode, query_timeout=SHORT))  # type: ignore[arg-type]
    client = pair.connect()
    client.send(query(b"select 1"))
    client.send(request_)
    await until(lambda: client.session.state is State.CLOSED)
    # Its end cancels what runs, since nobody waits for it any more.
    assert len(pair.cancels.under_way) == 1
    assert await ended(pair, client) == "ErrorResponse FATAL 57014 query timeout"


async def test_a_query_in_a_transaction() -> None:
    pair = SessionPair(backends=1, terms=Terms(query_timeout=SHORT))
    client = pair.connect()
    client.send(query(b"begin"))
    client.send(query(b"select 1"))
    client.send(SLEEP)
    assert await ended(pair, client) == "ErrorResponse FATAL 57014 query timeout"


async def test_the_wait_for_a_backend_is_part_of_it() -> None:
    pair = SessionPair(backends=0, terms=Terms(query_timeout=SHORT))
    client = pair.connect()
    client.send(query(b"select 1"))
    assert client.session.state is State.WAITING
    assert await ended(pair, client) == "ErrorResponse FATAL 57014 query_timeout"
    assert not pair.pool.waiting


async def test_it_counts_from_the_request() -> None:
    pair = SessionPair(backends=0, terms=Terms(query_timeout=0.3))
    client = pair.connect()
    asked = asyncio.get_running_loop().time()
    client.send(SLEEP)
    await asyncio.sleep(0.2)
    pair.open_backend()
    pair.pump()
    assert client.session.state is State.LEASED
    await until(lambda: client.session.state is State.CLOSED)
    # Not 0.5 s: generous, for a slow machine, and less than what two full timeouts would be.
    assert 0.3 <= asyncio.get_running_loop().time() - asked < 0.5


async def test_who_asks_nothing_is_not_too_late() -> None:
    pair = SessionPair(backends=1, terms=Terms(query_timeout=SHORT))
    client = pair.connect()
    for request in (query(b"select 1"), query(b"begin"), once(b"select 1") + FLUSH):
        client.send(request)
        await asyncio.sleep(3 * SHORT)
        assert client.session.state is not State.CLOSED
    client.send(SYNC)
    client.send(SLEEP)
    assert await ended(pair, client) == "ErrorResponse FATAL 57014 query timeout"


async def test_many_short_queries_are_not_one_long() -> None:
    pair = SessionPair(backends=1, terms=Terms(query_timeout=0.2))
    client = pair.connect()
    for _ in range(10):
        assert client.send(query(b"select 1"))[-1] == "ReadyForQuery I"
        await asyncio.sleep(0.05)


# -- transaction_timeout ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("runs", [True, False])
async def test_a_transaction_that_takes_too_long_ends_the_session(mode: str, runs: bool) -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode=mode, transaction_timeout=0.1))  # type: ignore[arg-type]
    client = pair.connect()
    client.send(query(b"select 1"))
    began = asyncio.get_running_loop().time()
    client.send(query(b"begin"))
    while client.session.state is not State.CLOSED and not runs:
        client.send(query(b"select 1"))
        await asyncio.sleep(0.01)
    if runs:
        client.send(SLEEP)
    assert await ended(pair, client) == "ErrorResponse FATAL 25P04 transaction timeout"
    assert asyncio.get_running_loop().time() - began >= 0.1


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_many_transactions_are_not_one(mode: str) -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode=mode, transaction_timeout=0.2))  # type: ignore[arg-type]
    client = pair.connect()
    for _ in range(10):
        client.send(query(b"begin"))
        await asyncio.sleep(0.05)
        assert client.send(query(b"commit"))[-1] == "ReadyForQuery I"
    await asyncio.sleep(0.25)
    assert client.session.state is not State.CLOSED


async def test_the_wait_for_a_backend_is_no_part_of_the_transaction() -> None:
    pair = SessionPair(backends=0, terms=Terms(transaction_timeout=0.2))
    client = pair.connect()
    client.send(query(b"begin"))
    await asyncio.sleep(0.3)
    assert client.session.state is State.WAITING
    pair.open_backend()
    pair.pump()
    assert client.read()[-1] == "ReadyForQuery T"
    assert await ended(pair, client) == "ErrorResponse FATAL 25P04 transaction timeout"


# -- client_idle_timeout ---------------------------------------------------------------------------------------------

IDLE = "ErrorResponse FATAL 57P05 client_idle_timeout"


async def test_a_session_that_asks_nothing_ends() -> None:
    pair = SessionPair(backends=1, terms=Terms(client_idle_timeout=SHORT))
    client = pair.connect()
    assert await ended(pair, client) == IDLE


async def test_one_that_has_asked_ends_too() -> None:
    pair = SessionPair(backends=1, terms=Terms(client_idle_timeout=0.1))
    client = pair.connect()
    for _ in range(8):
        assert client.send(query(b"select 1"))[-1] == "ReadyForQuery I"
        await asyncio.sleep(0.05)
    assert await ended(pair, client) == IDLE


async def test_one_whose_request_was_refused_has_its_time_from_then_on() -> None:
    pair = SessionPair(backends=0, terms=Terms(client_idle_timeout=0.1))
    client = pair.connect()
    client.send(once(b"select 1"))
    await asyncio.sleep(0.2)
    assert client.session.state is State.WAITING
    client.session.cancel()
    assert client.session.state.name == "SKIPPING"
    await asyncio.sleep(0)
    assert client.session.state.name == "SKIPPING"
    assert await ended(pair, client) == IDLE


async def test_who_has_a_backend_or_waits_for_one_is_not_idle() -> None:
    pair = SessionPair(backends=1, terms=Terms(client_idle_timeout=SHORT))
    client, waiting = pair.connect(), pair.connect()
    client.send(query(b"begin"))
    waiting.send(query(b"select 1"))
    await asyncio.sleep(3 * SHORT)
    assert (client.session.state, waiting.session.state) == (State.LEASED, State.WAITING)
    for each in (client, waiting):
        each.vanish()


async def test_a_backend_that_is_kept_in_session_mode_is_one() -> None:
    """PgBouncer's rule: who listens in session mode says nothing for hours."""
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", client_idle_timeout=SHORT))
    client = pair.connect()
    client.send(query(b"select 1"))
    await asyncio.sleep(3 * SHORT)
    assert client.session.state is State.LEASED
    client.send(TERMINATE_MESSAGE)


# -- idle_transaction_timeout ----------------------------------------------------------------------------------------


async def test_nobody_is_idle_in_a_transaction_between_two_in_session_mode() -> None:
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", idle_transaction_timeout=SHORT))
    client = pair.connect()
    client.send(query(b"select 1"))
    await asyncio.sleep(3 * SHORT)
    assert client.session.state is State.LEASED
    client.send(query(b"begin"))
    assert await ended(pair, client) == "ErrorResponse FATAL 25P03 idle transaction timeout"


async def test_who_sends_a_large_message_in_parts_goes_on_as_long_as_they_come() -> None:
    pair = SessionPair(backends=1, terms=Terms(idle_transaction_timeout=0.2))
    client = pair.connect()
    client.send(query(b"copy t from stdin"))
    large = copy_data(b"1\n" * 100_000)
    for at in range(0, len(large), 25_000):
        client.feed(large[at : at + 25_000])
        await asyncio.sleep(0.05)
    assert client.session.state is State.LEASED
    client.send(large[:50_000])
    await until(lambda: client.session.state is State.CLOSED)
    assert client.read()[-1] == "ErrorResponse FATAL 25P03 idle transaction timeout"


# -- another configuration -------------------------------------------------------------------------------------------


def agree(client: PairedClient, terms: Terms) -> None:
    assert client.session.admission is not None
    client.session.admission.terms = terms
    client.session.reconfigure()


async def test_a_timeout_that_is_set_while_it_is_already_too_late() -> None:
    pair = SessionPair(backends=3)
    idle, busy, inside = pair.connect(), pair.connect(), pair.connect()
    busy.send(SLEEP)
    inside.send(query(b"begin"))
    terms = Terms(client_idle_timeout=SHORT, query_timeout=SHORT, idle_transaction_timeout=SHORT)
    for client in (idle, busy, inside):
        agree(client, terms)
        assert client.session.state is not State.CLOSED
    await until(lambda: all(client.session.state is State.CLOSED for client in (idle, busy, inside)))
    assert [client.read()[-1].split()[2] for client in (idle, busy, inside)] == ["57P05", "57014", "25P03"]
    pair.finish_cancels()


@pytest.mark.parametrize("before", [Terms(), Terms(transaction_timeout=LONG), Terms(query_timeout=LONG)])
async def test_a_timeout_that_is_set_is_not_counted_from_the_login(before: Terms) -> None:
    """When somebody without it has asked last, or begun to rest, need not have been noted."""
    pair = SessionPair(backends=2, terms=before)
    idle, busy = pair.connect(), pair.connect()
    await asyncio.sleep(0.3)
    assert idle.send(query(b"select 1"))[-1] == "ReadyForQuery I"
    busy.send(SLEEP)
    for client in (idle, busy):
        agree(client, Terms(client_idle_timeout=0.25, query_timeout=0.25))
    await asyncio.sleep(0.05)
    assert (idle.session.state, busy.session.state) == (State.IDLE, State.LEASED)
    await until(lambda: State.CLOSED is idle.session.state is busy.session.state)
    pair.finish_cancels()


async def test_a_timeout_that_is_raised_or_switched_off() -> None:
    pair = SessionPair(backends=1, terms=Terms(client_idle_timeout=0.05, query_timeout=0.05))
    client = pair.connect()
    client.send(SLEEP)
    for terms in (Terms(client_idle_timeout=LONG, query_timeout=LONG), Terms()):
        agree(client, terms)
        await asyncio.sleep(0.1)
        assert client.session.state is State.LEASED
    client.vanish()
