from __future__ import annotations

import asyncio
import time

import pytest

from pgtrunk_gateway.fleet.charter import Secrets
from pgtrunk_gateway.fleet.ticketing import Ticketing
from pgtrunk_gateway.quic.ticket_keys import PERIOD, TicketKeys

NONCE = bytes(12)


def test_a_worker_that_begins_later_opens_what_the_first_has_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    ticketing = Ticketing(None)
    number, keys = ticketing.seed
    sealed = TicketKeys(keys, number).at(now).seal(b"x", nonce=NONCE)
    now += PERIOD
    number, later = ticketing.seed
    assert keys[0] in later[1:]
    assert TicketKeys(later, number).at(now).open(sealed) == b"x"
    now += PERIOD
    assert keys[0] not in ticketing.seed[1]


def test_the_next_supervisor_goes_on_with_the_same_keys() -> None:
    seed = Ticketing(None).seed
    secrets = Secrets(quic_keys=(b"q" * 32,), mock_key=b"m" * 32, tickets=seed)
    taken = Secrets.from_body(secrets.as_body())
    assert taken == secrets
    assert Ticketing(taken.tickets).seed == seed


def test_an_older_supervisor_has_none() -> None:
    body = Secrets(quic_keys=(b"q" * 32,), mock_key=b"m" * 32).as_body()
    del body["tickets"]
    assert Secrets.from_body(body).tickets is None


async def test_old_keys_go_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    ticketing = Ticketing(None)
    (first,) = ticketing.seed[1]
    now += 2 * PERIOD
    ticketing.start()
    assert first not in ticketing._keys._keys
    ticketing.close()
    ticketing.close()
    await asyncio.sleep(0)
