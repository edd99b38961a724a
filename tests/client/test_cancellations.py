"""Cancellation at every await between "asked for" and "given back": nothing is lost, nothing hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from helpers.cancelling import Moment, cancel_at, cancel_everywhere
from helpers.fake_gateway import FakeGateway, Sink
from helpers.trunks import assert_nothing_lost, fake_trunk, limit, open_session, turns
from pgtrunk.errors import SessionLost, TrunkClosed

if TYPE_CHECKING:
    from pgtrunk.trunk import Trunk


async def open_and_close(trunk: Trunk, *, link: int | None = None) -> None:
    opened = await trunk.open_stream(Sink, limit(trunk), link=link)
    opened.transport.close()


async def test_while_the_first_connection_is_dialled() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with fake_trunk() as (trunk, gateway):
            hit = await cancel_at(open_and_close(trunk), at, moment)
            await assert_nothing_lost(trunk, gateway)
            return hit

    assert await cancel_everywhere(scenario) == 1


async def test_while_waiting_at_the_cap() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with fake_trunk() as (trunk, gateway):
            sessions = [await open_session(trunk) for _ in range(2)]
            attempt = asyncio.create_task(cancel_at(open_and_close(trunk), at, moment))
            await turns()
            for session in sessions:
                session.transport.close()
            hit = await attempt
            await assert_nothing_lost(trunk, gateway)
            return hit

    assert await cancel_everywhere(scenario) == 1


@pytest.mark.parametrize("moment", ["pending", "done"])
async def test_the_next_in_line_gets_what_a_cancelled_caller_was_given(moment: Moment) -> None:
    async with fake_trunk(streams=1) as (trunk, gateway):
        session = await open_session(trunk)
        first = asyncio.create_task(cancel_at(open_and_close(trunk), 1, moment))
        await turns()
        second = asyncio.create_task(open_and_close(trunk))
        await turns()
        session.transport.close()
        assert await first
        await second
        await assert_nothing_lost(trunk, gateway)


async def test_while_the_connection_of_the_slot_is_lost_before_it_is_used() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with fake_trunk(streams=1) as (trunk, gateway):
            session = await open_session(trunk)
            attempt = asyncio.create_task(cancel_at(open_and_close(trunk), at, moment))
            await turns()
            # Handed over in one turn of the loop, lost in the same, redialled after the back-off.
            session.transport.close()
            session.protocol.lost.add_done_callback(lambda _: gateway.connections[0].lose())
            hit = await attempt
            await assert_nothing_lost(trunk, gateway)
            return hit

    assert await cancel_everywhere(scenario) == 2


async def test_while_a_cancel_waits_for_a_stream() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with fake_trunk(FakeGateway(max_streams=9), streams=8) as (trunk, gateway):
            session = await open_session(trunk)
            gateway.connections[0].allow(1)
            attempt = asyncio.create_task(cancel_at(open_and_close(trunk, link=session.link), at, moment))
            await turns()
            gateway.connections[0].allow(9)
            hit = await attempt
            session.transport.close()
            await assert_nothing_lost(trunk, gateway)
            return hit

    assert await cancel_everywhere(scenario) == 1


async def test_while_the_trunk_closes() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        async with fake_trunk(connections=2) as (trunk, gateway):
            session = await open_session(trunk)
            gateway.script.append(asyncio.get_running_loop().create_future())
            late = [asyncio.create_task(open_session(trunk)) for _ in range(3)]
            await turns()
            hit = await cancel_at(trunk.close(), at, moment)
            # It goes on without the one who asked for it.
            await trunk.close()
            assert [type(result) for result in await asyncio.gather(*late, return_exceptions=True)][1:] == [
                TrunkClosed
            ] * 2
            assert isinstance(await session.protocol.lost, SessionLost)
            assert gateway.open_streams == 0
            assert trunk.stats().connections_closing == 0
            return hit

    assert await cancel_everywhere(scenario) == 1


async def test_of_every_other_one_in_the_line() -> None:
    async with fake_trunk(connections=2, streams=3) as (trunk, gateway):
        sessions = [await open_session(trunk) for _ in range(6)]
        waiting = [asyncio.create_task(open_and_close(trunk)) for _ in range(20)]
        await turns()
        assert trunk.stats().waiting == 20
        for session in sessions:
            session.transport.close()
        for task in waiting[::2]:
            task.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False] * 10
        await assert_nothing_lost(trunk, gateway)
