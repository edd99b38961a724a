"""The trunk with fake connections: waiting, losing, refusing, closing, and what it says of itself."""

from __future__ import annotations

import asyncio
import logging
import os
import re

import pytest

from helpers.fake_gateway import FakeConnection, FakeGateway, Sink
from helpers.trunks import assert_nothing_lost, fake_trunk, limit, open_session, turns, until_idle
from pgtrunk.backoff import Backoff
from pgtrunk.errors import (
    AcquireTimeout,
    CertificateError,
    GatewayUnreachable,
    SessionLost,
    TrunkClosed,
    UsageError,
)
from pgtrunk.telemetry import RedundancyStats, TrunkStats

REFUSED = GatewayUnreachable("nothing listens there")
FLAT = [name for name, value in vars(TrunkStats).items() if isinstance(value, property)]
"""The names that there were before there were areas."""


async def test_sessions_are_packed_and_slots_used_again() -> None:
    async with fake_trunk(connections=3, streams=2) as (trunk, gateway):
        sessions = [await open_session(trunk) for _ in range(5)]
        assert [session.link for session in sessions] == sorted(session.link for session in sessions)
        assert [connection.open_streams for connection in gateway.connections] == [2, 2, 1]
        sessions[0].transport.close()
        await sessions[0].protocol.lost
        again = await open_session(trunk)
        assert again.link == sessions[1].link
        assert gateway.dials == 3


async def test_many_at_once_dial_no_more_than_they_need() -> None:
    async with fake_trunk(connections=4, streams=10) as (trunk, gateway):
        await asyncio.gather(*(open_session(trunk) for _ in range(25)))
        assert gateway.dials == 3


async def test_callers_are_served_in_the_order_of_their_arrival() -> None:
    async with fake_trunk(streams=1) as (trunk, _):
        session = await open_session(trunk)
        served: list[int] = []

        async def caller(number: int) -> None:
            opened = await open_session(trunk)
            served.append(number)
            opened.transport.close()

        tasks = [asyncio.create_task(caller(number)) for number in range(10)]
        await turns()
        session.transport.close()
        await asyncio.gather(*tasks)
        assert served == list(range(10))


async def test_who_waits_too_long_is_told_why_and_leaves_no_trace() -> None:
    async with fake_trunk(streams=1) as (trunk, gateway):
        session = await open_session(trunk)
        with pytest.raises(
            AcquireTimeout, match=r"acquire_timeout=0\.01 s.*nobody else waits.*streams_per_connection=1"
        ):
            await open_session(trunk, 0.01)
        stats = trunk.stats()
        assert (stats.waiting, stats.acquires_failed) == (0, 1)
        session.transport.close()
        await assert_nothing_lost(trunk, gateway)


async def test_one_who_is_cancelled_is_not_counted_as_waiting() -> None:
    async with fake_trunk(streams=1) as (trunk, _):
        await open_session(trunk)
        task = asyncio.create_task(open_session(trunk))
        await turns()
        task.cancel()
        await asyncio.wait([task])
        assert trunk.stats().waiting == 0


async def test_a_factory_that_fails_gives_its_slot_back() -> None:
    def factory() -> Sink:
        raise RuntimeError("no protocol today")

    async with fake_trunk(streams=1) as (trunk, gateway):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="no protocol today"):
                await trunk.open_stream(factory, limit(trunk))
        await assert_nothing_lost(trunk, gateway)


async def test_the_gateways_limit_is_kept_and_its_growth_used() -> None:
    async with fake_trunk(FakeGateway(max_streams=4), streams=100) as (trunk, gateway):
        tasks = [asyncio.create_task(open_session(trunk)) for _ in range(10)]
        await turns(10)
        assert trunk.stats().streams_in_use == 3, "four less one for cancels"
        gateway.connections[0].allow(8)
        await turns(10)
        assert trunk.stats().streams_in_use == 7
        gateway.connections[0].allow(100)
        for opened in await asyncio.gather(*tasks):
            opened.transport.close()
        await until_idle(trunk)


# Cancels.


async def test_a_cancel_passes_when_all_is_full_on_the_session_s_own_connection() -> None:
    async with fake_trunk(connections=2, streams=2) as (trunk, gateway):
        sessions = [await open_session(trunk) for _ in range(4)]
        waiting = asyncio.create_task(open_session(trunk))
        await turns()
        cancel = await trunk.open_stream(Sink, limit(trunk), link=sessions[3].link)
        assert cancel.link == sessions[3].link
        assert gateway.connections[1].open_streams == 3
        stats = trunk.stats()
        assert (stats.streams_in_use, stats.cancels_in_use, stats.cancels_sent, stats.waiting) == (4, 1, 1, 1)
        cancel.transport.close()
        sessions[0].transport.close()
        await waiting


async def test_a_cancel_that_the_gateway_never_ends_is_aborted_at_its_deadline() -> None:
    async with fake_trunk() as (trunk, _):
        session = await open_session(trunk)
        cancel = await trunk.open_stream(Sink, limit(trunk, 0.01), link=session.link)
        assert await cancel.protocol.lost is None
        await turns()
        assert trunk.stats().cancels_in_use == 0


async def test_a_cancel_of_a_lost_session_says_so() -> None:
    async with fake_trunk() as (trunk, gateway):
        session = await open_session(trunk)
        gateway.connections[0].lose()
        with pytest.raises(SessionLost, match="was to be cancelled is lost"):
            await trunk.open_stream(Sink, limit(trunk), link=session.link)


# Losses.


async def test_a_lost_connection_fails_its_sessions_and_is_replaced() -> None:
    async with fake_trunk(backoff=Backoff(base=0.01)) as (trunk, gateway):
        sessions = [await open_session(trunk) for _ in range(2)]
        waiting = asyncio.create_task(open_session(trunk))
        await turns()
        gateway.connections[0].lose("idle for 10 s")
        for session in sessions:
            error = await session.protocol.lost
            assert isinstance(error, SessionLost)
            assert str(error) == "idle for 10 s"
        assert (await waiting).link != sessions[0].link
        stats = trunk.stats()
        assert (stats.connections_lost, stats.streams_lost, stats.streams_in_use) == (1, 2, 1)


async def test_streams_that_report_before_their_connection_is_known_to_be_lost_hand_nothing_over() -> None:
    async with fake_trunk(backoff=Backoff(base=0.01)) as (trunk, gateway):
        sessions = [await open_session(trunk) for _ in range(2)]
        waiting = [asyncio.create_task(open_session(trunk)) for _ in range(2)]
        await turns()
        connection = gateway.connections[0]
        on_lost, connection.on_lost = connection.on_lost, None
        connection.lose()
        for session in sessions:
            await session.protocol.lost
        for opened in await asyncio.gather(*waiting):
            assert opened.link != sessions[0].link
        assert on_lost is not None
        on_lost(SessionLost("said late, and once more"))
        assert trunk.stats().connections_lost == 1


async def test_an_idle_connection_that_ends_is_no_loss() -> None:
    async with fake_trunk() as (trunk, gateway):
        (await open_session(trunk)).transport.close()
        await until_idle(trunk)
        gateway.connections[0].lose()
        assert trunk.stats().connections_lost == 0
        await assert_nothing_lost(trunk, gateway)


async def test_a_connection_nobody_uses_is_closed() -> None:
    async with fake_trunk(max_idle=0.01) as (trunk, gateway):
        (await open_session(trunk)).transport.close()
        async with asyncio.timeout(10):
            await gateway.connections[0].wait_closed()
        await turns()
        assert trunk.stats().connections_ready == 0
        await assert_nothing_lost(trunk, gateway)


# A gateway that cannot be reached.


async def test_a_gateway_never_reached_is_an_error_at_once_with_its_cause() -> None:
    gateway = FakeGateway()
    gateway.script.append(REFUSED)
    async with fake_trunk(gateway) as (trunk, _):
        with pytest.raises(GatewayUnreachable, match=r"given up.*nothing listens there") as caught:
            await open_session(trunk)
        assert caught.value.__cause__ is REFUSED
        assert trunk.stats().connections_failed == 1


async def test_a_gateway_that_restarts_is_waited_for() -> None:
    async with fake_trunk(backoff=Backoff(base=0.001)) as (trunk, gateway):
        await open_session(trunk)
        gateway.script.extend([REFUSED] * 3)
        gateway.connections[0].lose()
        await open_session(trunk)
        assert gateway.dials == 5


async def test_at_the_deadline_the_error_carries_the_last_cause() -> None:
    async with fake_trunk(backoff=Backoff(base=60.0)) as (trunk, gateway):
        await open_session(trunk)
        gateway.connections[0].lose("reset by the gateway")
        with pytest.raises(GatewayUnreachable, match=r"acquire_timeout=0\.01 s.*reset by the gateway.*next attempt"):
            await open_session(trunk, 0.01)


async def test_a_gateway_that_does_not_answer_is_an_error_at_the_deadline() -> None:
    gateway = FakeGateway()
    gateway.script.append(asyncio.get_running_loop().create_future())
    async with fake_trunk(gateway) as (trunk, _):
        with pytest.raises(GatewayUnreachable, match=r"did not answer within acquire_timeout=0\.01 s"):
            await open_session(trunk, 0.01)


async def test_a_wrong_certificate_is_an_error_at_once_for_all_who_wait() -> None:
    async with fake_trunk(streams=1) as (trunk, gateway):
        await open_session(trunk)
        gateway.script.append(CertificateError("it is for another name"))
        gateway.connections[0].lose()
        results = await asyncio.gather(*(open_session(trunk) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [CertificateError] * 3
        assert len({id(result) for result in results}) == 3


async def test_a_mistake_of_ours_reaches_the_caller_instead_of_being_waited_for() -> None:
    gateway = FakeGateway()
    gateway.script.append(KeyError("a bug"))
    async with fake_trunk(gateway) as (trunk, _):
        with pytest.raises(GatewayUnreachable) as caught:
            await open_session(trunk)
        assert isinstance(caught.value.__cause__, KeyError)


async def test_a_connection_lost_before_anybody_listened_counts_as_failed() -> None:
    gateway = FakeGateway()
    async with fake_trunk(gateway, backoff=Backoff(base=0.01)) as (trunk, _):
        connect = gateway.connect

        async def dead_on_arrival(_: object) -> object:
            connection = await connect()
            connection.lose()
            return connection

        trunk.lines.connect = dead_on_arrival  # type: ignore[assignment]
        with pytest.raises(GatewayUnreachable, match="lost at once"):
            await open_session(trunk)


async def test_what_is_left_of_one_lost_before_anybody_listened_is_waited_for() -> None:
    gateway = FakeGateway()
    gateway.lingers = True
    dead: list[FakeConnection] = []
    async with fake_trunk(gateway) as (trunk, _):
        connect = gateway.connect

        async def dead_on_arrival(_: object) -> object:
            connection = await connect()
            connection.lose()
            dead.append(connection)
            return connection

        trunk.lines.connect = dead_on_arrival  # type: ignore[assignment]
        with pytest.raises(GatewayUnreachable):
            await open_session(trunk)
        closing = asyncio.create_task(trunk.close())
        await turns()
        assert not closing.done()
        for connection in dead:
            connection.closed.set()
        await closing


# The end.


async def test_closing_ends_sessions_and_those_who_wait() -> None:
    async with fake_trunk(streams=1) as (trunk, gateway):
        session = await open_session(trunk)
        session.transport.write(b"the last word")
        waiting = asyncio.create_task(open_session(trunk))
        await turns()
        await trunk.close()
        assert isinstance(await session.protocol.lost, SessionLost)
        with pytest.raises(TrunkClosed, match="was closed while this caller waited"):
            await waiting
        assert gateway.open_streams == 0
        await trunk.close()
        with pytest.raises(TrunkClosed, match="is closed"):
            trunk.check()
        with pytest.raises(TrunkClosed):
            await open_session(trunk)


async def test_closing_waits_a_bounded_time_and_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.trunk.CLOSE_TIMEOUT", 0.01)
    gateway = FakeGateway()
    gateway.lingers = True
    async with fake_trunk(gateway) as (trunk, _):
        await open_session(trunk)
        await trunk.close()
        assert [connection.was_stopped for connection in gateway.connections] == [True]


async def test_closing_does_not_wait_for_an_attempt_that_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.trunk.CLOSE_TIMEOUT", 1000.0)
    gateway = FakeGateway()
    never = asyncio.get_running_loop().create_future()
    gateway.script.append(never)
    async with fake_trunk(gateway) as (trunk, _):
        waiting = asyncio.create_task(open_session(trunk))
        await turns()
        await trunk.close()
        assert never.cancelled()
        with pytest.raises(TrunkClosed):
            await waiting


async def test_an_attempt_that_succeeds_while_the_trunk_closes_is_closed_too() -> None:
    gateway = FakeGateway()
    async with fake_trunk(gateway) as (trunk, _):
        task = asyncio.create_task(open_session(trunk))
        for _ in range(100):
            if gateway.connections:
                break
            await asyncio.sleep(0)
        # The dial is done, and its callback has not run.
        await trunk.close()
        assert not gateway.connections[0].is_alive
        with pytest.raises(TrunkClosed):
            await task


async def test_another_loop_is_refused_with_words() -> None:
    async with fake_trunk() as (trunk, _):

        def elsewhere() -> None:
            async def use() -> None:
                trunk.check()

            with pytest.raises(UsageError, match="opened on another event loop"):
                asyncio.run(use())
            with pytest.raises(UsageError, match="without a running event loop"):
                trunk.check()

        await asyncio.to_thread(elsewhere)


async def test_a_fork_is_refused_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_trunk() as (trunk, _):
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: 4711)
            with pytest.raises(UsageError, match=r"belongs to process \d+, and this is 4711.*after the fork"):
                trunk.check()
            with pytest.raises(UsageError):
                await trunk.close()
        trunk.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_real_fork_leaves_the_parent_alone() -> None:
    async with fake_trunk() as (trunk, gateway):
        session = await open_session(trunk)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                trunk.check()
            except UsageError:
                code = 7
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        session.transport.close()
        await assert_nothing_lost(trunk, gateway)


# What it says.


async def test_stats_count_what_happened() -> None:
    async with fake_trunk(connections=2, streams=2) as (trunk, _):
        sessions = [await open_session(trunk) for _ in range(3)]
        waiting = [asyncio.create_task(open_session(trunk)) for _ in range(2)]
        await turns()
        sessions[0].transport.close()
        await turns(10)
        stats = trunk.stats()
        assert {name: getattr(stats, name) for name in FLAT} == {
            "connections_connecting": 0,
            "connections_ready": 2,
            "connections_leaving": 0,
            "connections_closing": 0,
            "connections_max": 2,
            "streams_in_use": 4,
            "streams_max": 4,
            "cancels_in_use": 0,
            "waiting": 0,
            "connections_opened": 2,
            "connections_failed": 0,
            "connections_lost": 0,
            "streams_opened": 5,
            "streams_closed": 1,
            "streams_lost": 0,
            "acquires_failed": 0,
            "acquire_wait": pytest.approx(0.0, abs=5.0),
            "acquire_wait_max": pytest.approx(0.0, abs=5.0),
            "cancels_sent": 0,
            "goaways": 0,
            "sessions_moved": 0,
        }
        assert stats.redundancy == RedundancyStats()
        assert (stats.stages.stream.count, stats.stages.stream.total) == (5, stats.acquire_wait)
        assert 0 < trunk.stats().acquire_wait_max <= trunk.stats().acquire_wait
        assert all(task.done() for task in waiting)


async def test_repr_shows_the_state_at_a_glance() -> None:
    async with fake_trunk(connections=2, streams=2) as (trunk, _):
        [await open_session(trunk) for _ in range(3)]
        expected = "[connections: 2 ready, of 2 | streams: 3 in use, of 4 | 0 waiting]"
        assert repr(trunk) == f"<Trunk gw.test:6432 open {expected}>"
    assert repr(trunk).startswith("<Trunk gw.test:6432 closed [")


async def test_the_log_says_what_a_connection_went_through(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgtrunk")
    async with fake_trunk(backoff=Backoff(base=0.001)) as (trunk, gateway):
        await open_session(trunk)
        gateway.script.append(REFUSED)
        gateway.connections[0].lose("idle for 10 s")
        await open_session(trunk)
    messages = [re.sub(r"connection \d+", "connection N", record.getMessage()) for record in caplog.records]
    assert messages == [
        "gw.test:6432: connection N is open",
        "gw.test:6432: connection N is lost: idle for 10 s",
        "gw.test:6432: connection N could not be opened: nothing listens there",
        "gw.test:6432: connection N is open",
    ]
