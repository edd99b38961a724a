"""39 of the 40 streams of one QUIC connection are stuck; the 40th is not, nor is a cancel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from helpers.raw_session import RawSession
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start

STREAMS = 40
LARGE = 1 << 20


async def forty(gateway: LocalGateway) -> tuple[list[RawSession], RawSession]:
    """39 sessions and one more, on one connection, which has room for a cancel besides."""
    await gateway.trunk(connections=1, streams_per_connection=STREAMS + 1)
    sessions = await asyncio.gather(*(RawSession.start(gateway, "quic") for _ in range(STREAMS)))
    assert gateway.counters()["quic_connections"] == 1
    return sessions[:-1], sessions[-1]


async def passes(gateway: LocalGateway, session: RawSession) -> None:
    """The session is served, whole transactions of it, and a cancel reaches it; what is held stays within bounds."""
    assert await session.ask(frontend.query(b"BEGIN")) == "CZT"
    assert await session.ask(frontend.query(b"SELECT 1")) == "TDCZT"
    large = b"SELECT length('" + b"x" * LARGE + b"')"
    assert await session.ask(frontend.query(large)) == "TDCZT"
    assert await session.ask(frontend.query(b"COMMIT")) == "CZI"
    session.send(frontend.query(b"SELECT pg_sleep(60)"))
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    cancel = await RawSession.open(gateway, "quic")
    cancel.send(session.cancel_request())
    messages = await session.until_ready()
    assert [message.error.sqlstate for message in messages if message.kind == "E"] == ["57014"]
    check_budget(gateway)


def check_budget(gateway: LocalGateway) -> None:
    config = gateway.gateway.config
    assert gateway.counters()["quic_held_bytes"] <= config.quic_connection_budget
    assert gateway.counters()["quic_held_bytes"] <= gateway.quic.budget.committed <= config.quic_memory_budget


async def test_clients_that_do_not_read_their_results(start: Start) -> None:
    gateway = await start(auth_type="trust", default_pool_size=STREAMS, max_client_conn=STREAMS + 10)
    stuck, free = await forty(gateway)
    for session in stuck:
        session.transport.pause_reading()
        session.send(frontend.query(b"SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
    # Their backends cannot go on: what they send fills every buffer on the way.
    await until(lambda: gateway.counters()["leased"] == len(stuck))
    for _ in range(3):
        await passes(gateway, free)
    await until(lambda: gateway.counts(leased=len(stuck)))
    # One that reads on gets all of it; the others leave.
    reader, *others = stuck
    reader.transport.resume_reading()
    assert len(reader.kinds(await reader.until_ready())) == len("TCZI") + 20000
    for session in others:
        session.abort()
    await until(lambda: gateway.counts(leased=0, quic_streams=2))


async def test_sessions_that_wait_for_a_backend_with_large_parameters_unread(start: Start) -> None:
    gateway = await start(auth_type="trust", default_pool_size=1, max_client_conn=STREAMS + 10)
    stuck, free = await forty(gateway)
    assert await free.ask(frontend.query(b"BEGIN")) == "CZT"
    assert await free.ask(frontend.query(b"SELECT 1")) == "TDCZT"
    for session in stuck:
        session.send(
            frontend.parse(b"", b"SELECT length($1::text)"),
            frontend.bind(b"", b"", [b"y" * LARGE]),
            frontend.execute(),
            frontend.SYNC_MESSAGE,
        )
    await until(lambda: gateway.counters()["waiting"] == len(stuck))
    # Much of it has come and cannot go on; all of it would be more than the budget.
    await until(lambda: gateway.counters()["quic_held_bytes"] > len(stuck) * 1000)
    check_budget(gateway)
    # The one that holds the backend can go on, its COMMIT above all; and one that waits can be cancelled.
    assert await free.ask(frontend.query(b"SELECT 1")) == "TDCZT"
    cancel = await RawSession.open(gateway, "quic")
    cancel.send(stuck[0].cancel_request())
    assert [message.kind for message in await stuck[0].until("E")][-1] == "E"
    assert gateway.counters()["waiting"] == len(stuck) - 1
    assert await free.ask(frontend.query(b"COMMIT")) == "CZI"
    for session in stuck[1:]:
        assert session.kinds(await session.until_ready()) == "12DCZI"
    assert session.kinds(await stuck[0].until_ready()) == "Z" + "I"
    check_budget(gateway)
    await passes(gateway, free)
