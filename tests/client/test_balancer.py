"""Connections are taken to where they should be, one at a time, and nothing is left half done."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from helpers.fake_gateway import FakeConnection, FakeGateway
from helpers.trunks import fake_trunk, open_session, turns, until
from pgtrunk import balancer
from pgtrunk.address import Address
from pgtrunk.balancer import Balancer
from pgtrunk.errors import GatewayUnreachable
from pgtrunk.gateways import Candidate, Move
from pgtrunk.quic.control import Goaway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from pgtrunk.trunk import Trunk

HERE, THERE = (Candidate(Address(name), 2, (name, 6432)) for name in ("here.test", "there.test"))
MOVE = Move(HERE, THERE.gateway)


class FakeDialer:
    """All connections are ``HERE``; moves are those that the test has asked for."""

    def __init__(self, trunk: Trunk, gateway: FakeGateway) -> None:
        self.gateways = self
        self.moves: list[Move] = []
        self.there = FakeGateway()
        self.probes = 0
        self.told: list[Goaway | None] = []
        self._trunk = trunk
        self._gateway = gateway

    def counts(self) -> Mapping[Candidate, int]:
        return {}

    def misplaced(self, counts: Mapping[Candidate, int], now: float) -> Move | None:
        return self.moves.pop(0) if self.moves else None

    def placed(self) -> dict[Any, Candidate]:
        return dict.fromkeys(self._gateway.connections, HERE)

    def told_to_leave(self, connection: Any) -> None:
        self.told.append(connection.leave)

    async def probe(self, move: Move) -> FakeConnection:
        self.probes += 1
        return await self.there.connect()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "LOOK", 0.002)


@asynccontextmanager
async def balanced(**settings: Any) -> AsyncIterator[tuple[Trunk, FakeGateway, FakeDialer]]:
    async with fake_trunk(**settings) as (trunk, gateway):
        dialer = FakeDialer(trunk, gateway)
        made = Balancer(trunk, dialer)  # type: ignore[arg-type]
        made.start()
        try:
            yield trunk, gateway, dialer
        finally:
            made.stop()
            await made.wait_stopped()


async def test_the_connection_with_the_fewest_sessions_is_left_when_the_other_is_open() -> None:
    async with balanced(connections=2, streams=2) as (trunk, gateway, dialer):
        sessions = [await open_session(trunk) for _ in range(3)]
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        dialer.there.script.append(coming)
        dialer.moves.append(MOVE)
        await until(lambda: dialer.probes)
        assert trunk.stats().connections_leaving == 0
        coming.set_result(None)
        await until(lambda: trunk.stats().connections_leaving)
        assert [each.open_streams for each in gateway.connections] == [2, 1]
        fourth = await open_session(trunk)
        assert dialer.there.open_streams == 1
        assert trunk.stats().connections.replaced == 1
        sessions[2].transport.close()
        await until(lambda: not gateway.connections[1].is_alive)
        assert gateway.connections[0].is_alive
        for session in (*sessions[:2], fourth):
            session.transport.close()


async def test_what_does_not_answer_is_no_reason_to_leave_anything() -> None:
    async with balanced() as (trunk, _, dialer):
        session = await open_session(trunk)
        dialer.there.script.extend([GatewayUnreachable("still away")] * 2)
        dialer.moves.extend([MOVE] * 3)
        await until(lambda: trunk.stats().connections.replaced)
        assert dialer.probes == 3
        session.transport.close()


async def test_an_early_connection_has_to_be_answered_first() -> None:
    async with balanced() as (trunk, _, dialer):
        session = await open_session(trunk)
        connect = dialer.there.connect
        made: list[FakeConnection] = []

        async def early(at: Address | None = None) -> FakeConnection:
            connection = await connect()
            connection.is_early = True
            made.append(connection)
            return connection

        dialer.there.connect = early  # type: ignore[method-assign]
        dialer.moves.append(MOVE)
        await until(lambda: made)
        await turns()
        assert trunk.stats().connections.replaced == 0
        made[0].is_early = False
        assert made[0].on_open is not None
        made[0].on_open()
        await until(lambda: trunk.stats().connections.replaced)
        session.transport.close()


async def test_nothing_is_left_for_a_gateway_that_drains() -> None:
    async with balanced() as (trunk, _, dialer):
        session = await open_session(trunk)
        connect = dialer.there.connect

        async def draining(at: Address | None = None) -> FakeConnection:
            connection = await connect()
            connection.leave = Goaway(30.0)
            return connection

        dialer.there.connect = draining  # type: ignore[method-assign]
        dialer.moves.append(MOVE)
        await until(lambda: dialer.there.connections and not dialer.there.connections[0].is_alive)
        assert (dialer.told, trunk.stats().connections.replaced) == ([Goaway(30.0)], 0)
        session.transport.close()


async def test_one_that_came_too_late_is_closed() -> None:
    async with balanced() as (trunk, gateway, dialer):
        session = await open_session(trunk)
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        dialer.there.script.append(coming)
        dialer.moves.append(MOVE)
        await until(lambda: dialer.probes)
        session.transport.close()
        gateway.connections[0].lose()
        coming.set_result(None)
        await until(lambda: dialer.there.connections and not dialer.there.connections[0].is_alive)
        assert trunk.stats().connections.replaced == 0


async def test_no_more_are_left_than_there_may_be() -> None:
    """Sessions that cannot move keep their connections open; with each that is left there is one more."""
    async with balanced(connections=1, streams=4) as (trunk, gateway, dialer):
        session = await open_session(trunk)
        dialer.moves.extend([MOVE] * 2)
        await until(lambda: trunk.stats().connections.replaced)
        await asyncio.sleep(0.05)
        assert (dialer.probes, len(dialer.moves)) == (1, 1)
        session.transport.close()
        await until(lambda: dialer.probes == 2)
        await until(lambda: all(not each.is_alive for each in dialer.there.connections[1:]))
        assert not gateway.connections[0].is_alive


async def test_stopped_in_the_middle_it_leaves_nothing() -> None:
    async with balanced() as (trunk, _, dialer):
        session = await open_session(trunk)
        dialer.there.script.append(asyncio.get_running_loop().create_future())
        dialer.moves.append(MOVE)
        await until(lambda: dialer.probes)
        session.transport.close()
