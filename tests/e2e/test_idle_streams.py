"""Streams that nobody uses cost nothing: two thousand of them beside one that works."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pytest

from helpers.raw_session import RawSession
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Start
    from pgtrunk import StreamManager

IDLE, QUERIES, ROUNDS = 2000, 300, 7


async def query_cost(session: RawSession) -> float:
    """CPU seconds of this process, which is gateway and client, for one query after the other on one stream."""
    before = time.process_time()
    for _ in range(QUERIES):
        await session.ask(frontend.query(b"SELECT 1"))
    return (time.process_time() - before) / QUERIES


async def opened(trunk: StreamManager) -> RawSession:
    _, session = await trunk.open_stream(RawSession)
    session.startup({})
    await session.until_ready()
    return session


@pytest.mark.alone
async def test_two_thousand_idle_streams_cost_a_query_nothing(start: Start) -> None:
    gateway = await start(
        auth_type="trust",
        max_client_conn=IDLE + 10,
        quic_max_streams=IDLE + 100,
        log_connections=0,
        log_disconnections=0,
    )
    crowded = await gateway.trunk(connections=1, streams_per_connection=IDLE + 1, acquire_timeout=60)
    empty = await gateway.trunk(connections=1)
    busy = await opened(crowded)
    idle = [await opened(crowded) for _ in range(IDLE)]
    alone = await opened(empty)
    assert gateway.counts(quic_streams=IDLE + 2, sessions=IDLE + 2, quic_connections=2)
    ratios = []
    for at in range(ROUNDS):
        # In turns, so that what else the machine does hits both alike.
        order = (busy, alone) if at % 2 else (alone, busy)
        cost = {session: await query_cost(session) for session in order}
        ratios.append(cost[busy] / cost[alone])
    assert statistics.median(ratios) <= 1.3, ratios
    for session in (busy, alone, *idle):
        session.abort()
    await until(lambda: gateway.counts(quic_streams=0, sessions=0))
