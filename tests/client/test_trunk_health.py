"""The trunk with fake connections: those that do not answer, those that are kept, those whose time is over."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

import pgtrunk.lines
from helpers.fake_gateway import FakeGateway
from helpers.trunks import fake_trunk, open_session, turns, until
from pgtrunk.backoff import Backoff
from pgtrunk.errors import GatewayUnreachable, TrunkClosed

REFUSED = GatewayUnreachable("nothing listens there")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgtrunk.lines, "SUSPECT_SPREAD", 0.01)


async def test_new_sessions_avoid_a_connection_that_does_not_answer_until_it_does() -> None:
    async with fake_trunk(connections=1, streams=5) as (trunk, gateway):
        old = await open_session(trunk)
        gateway.connections[0].suspect()
        stats = trunk.stats().connections
        assert (stats.ready, stats.suspect, stats.suspected) == (0, 1, 1)
        new = await open_session(trunk)
        assert new.link != old.link
        assert trunk.lines.may_leave(old.link)
        gateway.connections[0].suspect(False)
        assert not trunk.lines.may_leave(old.link)
        assert (await open_session(trunk)).link == old.link
        assert trunk.stats().connections.suspect == 0
        assert gateway.dials == 2
        new.transport.close()
        await until(lambda: not gateway.connections[1].is_alive)
        assert not old.transport.is_closing(), "one is too many, and it is not that with a session"


async def test_one_that_was_suspect_before_anybody_listened_is_taken_for_it() -> None:
    async with fake_trunk(connections=1) as (trunk, gateway):
        connect = gateway.connect

        async def silent(at: object = None) -> object:
            connection = await connect()
            connection.is_suspect = gateway.dials == 1
            return connection

        trunk.lines.connect = silent  # type: ignore[assignment]
        session = await open_session(trunk)
        assert session.transport is not None
        await until(lambda: trunk.stats().connections.suspect == 1)


async def test_those_who_move_are_told_when_another_is_ready() -> None:
    async with fake_trunk(connections=1, streams=5) as (trunk, gateway):
        told: list[int] = []
        trunk.lines.movers.append(told.append)
        session = await open_session(trunk)
        gateway.connections[0].suspect()
        await until(lambda: told == [session.link])
        assert gateway.dials == 2


async def test_min_connections_are_opened_kept_and_replaced() -> None:
    backoff = Backoff(base=0.001, spread=0.01)
    async with fake_trunk(connections=3, min_connections=2, max_idle=0.01, backoff=backoff) as (trunk, gateway):
        assert gateway.dials == 0
        trunk.start()
        await until(lambda: trunk.stats().connections.ready == 2)
        assert [connection.is_kept for connection in gateway.connections] == [True, True]
        gateway.script.extend([REFUSED] * 2)
        gateway.connections[0].lose()
        await until(lambda: trunk.stats().connections.ready == 2)
        assert gateway.dials == 5
        assert gateway.connections[2].is_kept
        stats = trunk.stats().connections
        assert (stats.opened, stats.failed) == (3, 2)


async def test_a_connection_that_is_too_old_is_left_for_another() -> None:
    async with fake_trunk(connections=1, streams=5, max_lifetime=0.02) as (trunk, gateway):
        old = await open_session(trunk)
        await until(lambda: trunk.stats().connections.replaced == 1)
        assert (trunk.stats().connections.leaving, trunk.stats().goaways) == (1, 0)
        assert trunk.lines.may_leave(old.link)
        old.transport.close()
        await until(lambda: not gateway.connections[0].is_alive)
        assert trunk.stats().connections_lost == 0


async def test_a_replacement_that_cannot_be_had_costs_no_session() -> None:
    backoff = Backoff(base=0.001, spread=0.001)
    gateway = FakeGateway()
    gateway.script.extend([None, REFUSED, REFUSED])
    async with fake_trunk(gateway, connections=1, streams=5, max_lifetime=0.02, backoff=backoff) as (trunk, _):
        session = await open_session(trunk)
        await until(lambda: trunk.stats().connections.failed == 2)
        await until(lambda: trunk.stats().connections.replaced >= 1)
        assert not session.transport.is_closing()
        assert trunk.stats().streams_lost == 0


async def test_closing_while_one_is_suspect_leaves_nothing() -> None:
    async with fake_trunk(connections=2) as (trunk, gateway):
        await open_session(trunk)
        gateway.connections[0].suspect()
        waiting = asyncio.create_task(open_session(trunk))
        await turns(1)
        await trunk.close()
        gateway.connections[0].suspect(False)
        with pytest.raises(TrunkClosed):
            await waiting


async def test_the_log_says_what_became_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgtrunk")
    async with fake_trunk(connections=1, streams=5) as (trunk, gateway):
        await open_session(trunk)
        gateway.connections[0].suspect()
        gateway.connections[0].suspect(False)
    messages = [re.sub(r"connection \d+", "connection N", record.getMessage()) for record in caplog.records]
    assert messages[:3] == [
        "gw.test:6432: connection N is open",
        "gw.test:6432: connection N does not answer, new sessions go elsewhere",
        "gw.test:6432: connection N answers again",
    ]
