"""A fleet of a real PgBouncer and of ours: each passes on the other's cancels. Where PgBouncer is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.gateways import POOLED
from helpers.pgbouncers import NOT_FOUND, PeerPgBouncer, find, pgbouncer
from helpers.raw_session import RawSession
from helpers.siblings import siblings
from helpers.site import DATABASE, USER
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, StartupMessage
from pgtrunk_gateway.cancel.keys import forwarded, peer_of
from pgtrunk_gateway.cancel.outcome import Outcome

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

OURS, THEIRS = 1, 258
"""A number of two octets, whose order matters."""
SLEEP: Final = frontend.query(b"SELECT pg_sleep(60)")
SELECT: Final = frontend.query(b"SELECT 1")
CANCELLED: Final = "57014"


# In CI a skipped test fails, and there is none: `make test-long` says that it skips these.
pytestmark = [pytest.mark.skipif(find() is None, reason=NOT_FOUND), *([] if find() else [pytest.mark.long])]


@pytest.fixture
def bouncer() -> Iterator[PeerPgBouncer]:
    program = find()
    assert program is not None
    with pgbouncer(program) as bouncer:
        yield bouncer


async def start_ours(start: Start, bouncer: PeerPgBouncer, **settings: Any) -> LocalGateway:
    peers = f"[peers]\n{THEIRS} = host=127.0.0.1 port={bouncer.port}"
    return await start(auth_type="trust", peer_id=OURS, sections=peers, default_pool_size=1, **settings)


async def start_theirs(bouncer: PeerPgBouncer, site: Site, port: int) -> None:
    await asyncio.to_thread(bouncer.start, site, THEIRS, f"{OURS} = host=127.0.0.1 port={port}")


async def open_there(bouncer: PeerPgBouncer) -> RawSession:
    _, session = await asyncio.get_running_loop().create_connection(RawSession, "127.0.0.1", bouncer.port)
    return session


async def log_in_there(bouncer: PeerPgBouncer) -> RawSession:
    session = await open_there(bouncer)
    session.send(StartupMessage(PROTOCOL_3_0, {"user": USER, "database": DATABASE}).encode())
    await session.until_ready()
    return session


async def errors(session: RawSession) -> list[str]:
    """The SQLSTATEs of the errors up to the next ReadyForQuery."""
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


async def cancel_by_pgbouncer(bouncer: PeerPgBouncer, request: bytes) -> None:
    connection = await open_there(bouncer)
    connection.send(request)
    assert await connection.until_lost() == []


async def cancel_by_ours(gateway: LocalGateway, way: Way, request: bytes) -> None:
    connection = await RawSession.open(gateway, way)
    connection.send(request)
    assert await connection.until_lost() == []


@pytest.mark.parametrize("protocol", [PROTOCOL_3_0, PROTOCOL_3_2], ids=["3.0", "3.2"])
async def test_pgbouncer_passes_on_what_is_ours(
    start: Start, bouncer: PeerPgBouncer, site: Site, protocol: int
) -> None:
    """Whoever asks for 3.2 gets a key that PgBouncer does not drop. What waits is refused, which it could not do."""
    gateway = await start_ours(start, bouncer)
    await start_theirs(bouncer, site, gateway.port)
    sessions = []
    for way in POOLED:
        session = await RawSession.open(gateway, way)
        session.startup({}, protocol=protocol)
        await session.until_ready()
        assert session.key is not None
        assert (peer_of(session.key.pid), len(session.key.secret)) == (OURS, 4)
        sessions.append(session)
    running, *waiting = sessions
    running.send(SLEEP)
    await until(lambda: site.admin.running("pg_sleep"))
    for session in waiting:
        session.send(SELECT)
    await until(lambda: gateway.counts(waiting=2))
    for session in (*waiting, running):
        await cancel_by_pgbouncer(bouncer, session.cancel_request())
        assert await errors(session) == [CANCELLED]
    assert gateway.gateway.cancels.outcomes == {Outcome.CARRIED: 1, Outcome.REFUSED: 2}
    for session in sessions:
        assert await session.ask(SELECT) == "TDCZI"


async def test_ours_passes_on_what_is_pgbouncers(start: Start, bouncer: PeerPgBouncer, site: Site) -> None:
    gateway = await start_ours(start, bouncer)
    await start_theirs(bouncer, site, gateway.port)
    session = await log_in_there(bouncer)
    assert session.key is not None
    assert peer_of(session.key.pid) == THEIRS
    for way in POOLED:
        session.send(SLEEP)
        await until(lambda: site.admin.running("pg_sleep"))
        await cancel_by_ours(gateway, way, session.cancel_request())
        assert await errors(session) == [CANCELLED]
    assert gateway.gateway.cancels.outcomes == {Outcome.FORWARDED: 3}
    session.close()


async def test_hops_end_at_either(start: Start, bouncer: PeerPgBouncer, site: Site) -> None:
    gateway = await start_ours(start, bouncer)
    await start_theirs(bouncer, site, gateway.port)
    theirs = await log_in_there(bouncer)
    ours = await RawSession.start(gateway, "tcp")
    for session in (theirs, ours):
        assert session.key is not None
        secret = session.key.secret
        for left in (3, 2, 1, 0):
            session.send(SLEEP)
            await until(lambda: site.admin.running("pg_sleep"))
            request = session.cancel_request(secret)
            if session is theirs:
                await cancel_by_ours(gateway, "tcp", request)
            else:
                await cancel_by_pgbouncer(bouncer, request)
            if not left:
                assert not session.has_answer
                # At home hops do not count.
                if session is theirs:
                    await cancel_by_pgbouncer(bouncer, request)
                else:
                    await cancel_by_ours(gateway, "tcp", request)
            else:
                secret = forwarded(secret)
            assert await errors(session) == [CANCELLED]
    outcomes = {Outcome.FORWARDED: 3, Outcome.UNKNOWN: 1, Outcome.CARRIED: 4}
    assert gateway.gateway.cancels.outcomes == outcomes
    theirs.close()


async def test_one_of_several_workers_is_behind_pgbouncers_peer(
    start: Start, bouncer: PeerPgBouncer, site: Site
) -> None:
    """What it passes on comes to any of them."""
    gateway, sibling = await start_ours(start, bouncer), await start_ours(start, bouncer)
    await start_theirs(bouncer, site, gateway.port)
    async with siblings(gateway.gateway.cancels, sibling.gateway.cancels):
        for way in POOLED:
            session = await RawSession.start(sibling, way)
            session.send(SLEEP)
            await until(lambda: site.admin.running("pg_sleep"))
            await cancel_by_pgbouncer(bouncer, session.cancel_request())
            assert await errors(session) == [CANCELLED]
    assert gateway.gateway.cancels.outcomes == {Outcome.CARRIED: 3}
