"""What may not last too long of a transaction that has begun without a backend, and what may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.conversations import SYNC, once
from helpers.session_pair import PairedClient, SessionPair
from helpers.waiting import until
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import State

SHORT = 0.02
BEGIN, COMMIT, SELECT, SLEEP = (query(text) for text in (b"begin", b"commit", b"select 1", b"select pg_sleep(60)"))
IDLE = "ErrorResponse FATAL 57P05 client_idle_timeout"
IDLE_INSIDE = "ErrorResponse FATAL 25P03 idle transaction timeout"
TOO_LONG = "ErrorResponse FATAL 25P04 transaction timeout"


def lazily(*, backends: int = 1, **limits: Any) -> tuple[SessionPair, PairedClient]:
    """A client that has said BEGIN."""
    pair = SessionPair(backends=backends, terms=Terms(lazy_begin=True, **limits))
    client = pair.connect()
    assert client.send(BEGIN)[-1] == "ReadyForQuery T"
    assert client.session.state is State.BEGUN
    return pair, client


async def ended(pair: SessionPair, client: PairedClient) -> str:
    await until(lambda: client.session.state is State.CLOSED)
    pair.pump()
    pair.finish_cancels()
    pair.check_idle()
    return client.read()[-1]


def agree(client: PairedClient, **limits: Any) -> None:
    assert client.session.admission is not None
    client.session.admission.terms = Terms(lazy_begin=True, **limits)
    client.session.reconfigure()


async def test_it_asks_nothing_and_is_not_outside_a_transaction() -> None:
    pair, client = lazily(query_timeout=SHORT, client_idle_timeout=SHORT)
    await asyncio.sleep(3 * SHORT)
    assert client.session.state is State.BEGUN
    client.send(COMMIT)
    assert await ended(pair, client) == IDLE


@pytest.mark.parametrize("asks", [True, False])
async def test_idle_transaction_timeout(asks: bool) -> None:
    pair, client = lazily(idle_transaction_timeout=SHORT)
    if asks:
        client.send(SELECT)
    assert await ended(pair, client) == IDLE_INSIDE


async def test_each_begin_and_each_end_is_a_sign_of_life() -> None:
    pair, client = lazily(client_idle_timeout=0.2, idle_transaction_timeout=0.2)
    for request in (COMMIT, BEGIN) * 4:
        await asyncio.sleep(0.05)
        assert client.send(request)[-1].startswith("ReadyForQuery")
    assert await ended(pair, client) == IDLE_INSIDE


@pytest.mark.parametrize("backends", [0, 1])
@pytest.mark.parametrize("asks", [True, False])
async def test_transaction_timeout_counts_from_begin(backends: int, asks: bool) -> None:
    time = asyncio.get_running_loop().time
    began = time()
    pair, client = lazily(backends=backends, transaction_timeout=1.0)
    await asyncio.sleep(0.7)
    asked = time()
    if asks:
        client.send(SELECT)
        assert client.session.state is (State.LEASED if backends else State.WAITING)
    assert await ended(pair, client) == TOO_LONG
    assert time() - began >= 1.0
    # That is what it would be from the first request on.
    assert time() - asked < 1.0


async def test_and_not_for_the_next() -> None:
    pair, client = lazily(transaction_timeout=0.2)
    for ahead in ([COMMIT], [BEGIN, SELECT, COMMIT], [BEGIN, query(b"rollback")], [BEGIN + SELECT, COMMIT], [SELECT]):
        for request in ahead:
            client.send(request)
        await asyncio.sleep(0.1)
    assert client.session.state is State.IDLE
    await asyncio.sleep(0.3)
    assert client.session.state.name == "IDLE"
    client.send(BEGIN)
    client.send(SELECT)
    assert await ended(pair, client) == TOO_LONG


async def test_timeouts_that_are_set_and_switched_off_in_the_middle() -> None:
    pair, client = lazily()
    agree(client, idle_transaction_timeout=60, transaction_timeout=60)
    client.send(SELECT)
    client.send(COMMIT)
    client.send(BEGIN)
    agree(client)
    client.send(SELECT)
    client.send(COMMIT)
    agree(client, transaction_timeout=SHORT)
    await asyncio.sleep(3 * SHORT)
    assert client.session.state is State.IDLE
    client.send(BEGIN)
    assert await ended(pair, client) == TOO_LONG
    pair, client = lazily()
    agree(client, idle_transaction_timeout=SHORT)
    assert await ended(pair, client) == IDLE_INSIDE


async def test_the_first_request_may_take_as_long_as_any() -> None:
    for request in (SLEEP, once(b"select pg_sleep(60)") + SYNC):
        pair, client = lazily(query_timeout=SHORT)
        client.send(request)
        assert await ended(pair, client) == "ErrorResponse FATAL 57014 query timeout"


async def test_and_wait_for_a_backend_as_long_as_any() -> None:
    pair, client = lazily(backends=0, query_timeout=SHORT)
    client.send(SELECT)
    assert client.session.state is State.WAITING
    assert await ended(pair, client) == "ErrorResponse FATAL 57014 query_timeout"


async def test_one_that_has_failed_rests_too() -> None:
    for request in (SELECT, once(b"select 1")):
        pair, client = lazily(backends=0, idle_transaction_timeout=0.1)
        client.send(request)
        await asyncio.sleep(0.2)
        assert client.session.state is State.WAITING
        client.session.cancel()
        if request is not SELECT:
            client.send(SYNC)
        assert client.session.state.name == "BEGUN"
        assert await ended(pair, client) == IDLE_INSIDE
