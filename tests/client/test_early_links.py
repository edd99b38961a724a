"""A trunk whose connections are open before their gateway has answered."""

from __future__ import annotations

import pytest

from helpers.fake_gateway import FakeConnection
from helpers.trunks import fake_trunk, open_session, turns, until
from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost, TrunkError


class EarlyConnection(FakeConnection):
    """Taken to be open until the gateway answers; if it ends before, that is for ever."""

    def fail(self, error: TrunkError | None = None) -> None:
        self._end(SessionLost("nobody has answered", sent=False))
        if self.on_lost is not None:
            self.on_lost(error or GatewayUnreachable("nobody has answered"))


async def test_sessions_are_opened_at_once_and_the_answer_makes_it_an_open_connection() -> None:
    async with fake_trunk() as (trunk, gateway):
        answered: list[object] = []
        trunk.lines.on_answer = answered.append
        gateway.makes = early
        session = await open_session(trunk)
        [connection] = gateway.connections
        assert trunk.counters.connections_opened == 0
        assert trunk.stats().connections_ready == 1
        connection.answer()
        assert trunk.counters.connections_opened == 1
        assert answered == [connection]
        session.transport.close()
        await turns()


async def test_one_that_is_never_answered_is_a_failed_dial_and_not_a_lost_connection() -> None:
    async with fake_trunk(connections=2, streams=1) as (trunk, gateway):
        await open_session(trunk)
        gateway.makes = early
        session = await open_session(trunk)
        [_, connection] = gateway.connections
        assert isinstance(connection, EarlyConnection)
        gateway.makes = FakeConnection
        connection.fail()
        error = await session.protocol.lost
        assert isinstance(error, SessionLost)
        assert error.retry_safe
        counters = trunk.counters
        assert (counters.connections_failed, counters.connections_lost, counters.connections_opened) == (1, 0, 1)
        await open_session(trunk)
        assert gateway.dials == 3
        assert counters.connections_opened == 2


async def test_a_gateway_that_was_never_reached_is_not_taken_to_be_restarting() -> None:
    """An early connection says nothing of whether the address is right."""
    async with fake_trunk() as (trunk, gateway):
        gateway.makes = early
        await open_session(trunk)
        [connection] = gateway.connections
        assert isinstance(connection, EarlyConnection)
        gateway.script.append(GatewayUnreachable("nobody has answered"))
        connection.fail()
        with pytest.raises(GatewayUnreachable):
            await open_session(trunk)


@pytest.mark.parametrize("error", [GatewayUnreachable("nobody has answered"), CertificateError("another's")])
async def test_one_that_fails_is_no_reason_to_refuse_sessions_where_there_is_another_gateway(error: TrunkError) -> None:
    async with fake_trunk() as (trunk, gateway):
        trunk.lines.on_lost = lambda *_: True
        gateway.makes = early
        await open_session(trunk)
        gateway.makes = FakeConnection
        [connection] = gateway.connections
        assert isinstance(connection, EarlyConnection)
        connection.fail(error)
        await open_session(trunk)
        assert (trunk.counters.connections_failed, trunk.counters.connections_opened) == (1, 1)


async def test_a_connection_is_not_left_for_one_that_nobody_has_answered() -> None:
    async with fake_trunk(max_lifetime=0.05, connections=1) as (trunk, gateway):
        session = await open_session(trunk)
        gateway.makes = early
        await until(lambda: len(gateway.connections) == 2)
        await turns()
        first, second = gateway.connections
        assert isinstance(second, EarlyConnection)
        assert not trunk.lines.is_leaving(session.link)
        second.fail()
        assert trunk.counters.connections_failed == 0, "in a turn of its own"
        await until(lambda: len(gateway.connections) == 3)
        assert trunk.counters.connections_failed == 1
        assert not trunk.lines.is_leaving(session.link)
        await turns()
        gateway.connections[2].answer()
        await until(lambda: trunk.lines.is_leaving(session.link))
        assert trunk.counters.connections_replaced == 1
        assert first.is_alive


async def test_a_trunk_that_is_closed_meanwhile_leaves_nothing() -> None:
    async with fake_trunk(max_lifetime=0.05, connections=1) as (trunk, gateway):
        await open_session(trunk)
        gateway.makes = early
        await until(lambda: len(gateway.connections) == 2)
        await turns()
    assert not gateway.connections[1].is_alive


def early(gateway: object) -> EarlyConnection:
    connection = EarlyConnection(gateway)  # type: ignore[arg-type]
    connection.is_early = True
    return connection
