"""Cancels in fleets of real processes: wherever they land, they find their session, and hit nothing else ever."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from behaviour.fronts import Front
from behaviour.wire import Wire, wires
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, CancelRequest

if TYPE_CHECKING:
    from helpers.fleets import LocalFleet, StartFleet
    from helpers.raw_session import RawSession

SLEEP: Final = frontend.query(b"SELECT pg_sleep(60)")
CANCELLED: Final = "57014"
FRONTS: Final = ("tcp", "unix", "quic")


@contextlib.asynccontextmanager
async def ways_into(fleet: LocalFleet) -> AsyncIterator[dict[str, Wire]]:
    """One by each front."""
    trunk = {"ca_file": str(fleet.site.certificates.ca_cert)}
    fronts = {
        "tcp": Front("127.0.0.1", fleet.port),
        "unix": Front(str(fleet.place), fleet.port),
        "quic": Front(gateway=f"127.0.0.1:{fleet.quic_port}", trunk=trunk),
    }
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(wires(front)) for name, front in fronts.items()}


async def log_in(wire: Wire, protocol: int = PROTOCOL_3_0) -> RawSession:
    """To a fleet that asks for no password."""
    session = await wire.open()
    session.reads_messages = True
    session.startup({}, protocol=protocol)
    await session.until_ready()
    return session


async def send(wire: Wire, request: bytes) -> None:
    """Sends a cancel request, and returns when a gateway says by closing that it has had its effect."""
    connection = await wire.open()
    connection.send(request)
    async with asyncio.timeout(30):
        await connection.is_lost.wait()
    assert connection.octets == b""
    wire.sessions.remove(connection)


async def errors(session: RawSession) -> list[str]:
    """The SQLSTATEs of the errors up to the next ReadyForQuery."""
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


@pytest.mark.parametrize("protocol", [PROTOCOL_3_0, PROTOCOL_3_2], ids=["3.0", "3.2"])
async def test_each_front_cancels_the_sessions_of_each(start_fleet: StartFleet, protocol: int) -> None:
    """Four of each front, so that each of two workers has some; and as often."""
    fleet = await start_fleet(workers=2, auth_type="trust", default_pool_size=40)
    async with ways_into(fleet) as ways:
        sessions = [await log_in(ways[front], protocol) for front in FRONTS * 4]
        assert all(fleet.spread())
        for front in FRONTS * 2:
            for session in sessions:
                session.send(SLEEP)
            await until(lambda: len(fleet.site.admin.running("pg_sleep")) == len(sessions))
            await asyncio.gather(*(send(ways[front], session.cancel_request()) for session in sessions))
            assert [await errors(session) for session in sessions] == [[CANCELLED]] * len(sessions)


async def test_what_waits_on_any_worker_is_refused(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(workers=2, auth_type="trust", default_pool_size=1)
    async with ways_into(fleet) as ways:
        sessions = [await log_in(ways[front]) for front in FRONTS * 2]
        for session in sessions:
            session.send(SLEEP)
        await until(lambda: fleet.site.admin.running("pg_sleep"))
        # All of them at once, whether they run or wait, and whatever becomes free by it.
        for _ in sessions:
            for session in sessions:
                if not session.has_answer:
                    await send(ways["tcp"], session.cancel_request())
        assert [await errors(session) for session in sessions] == [[CANCELLED]] * len(sessions)
        await until(lambda: not fleet.site.admin.running("pg_sleep"))


async def test_between_two_fleets(start_fleet: StartFleet) -> None:
    """A peer's connection comes to one of its workers or the other, as all do."""
    settings = {"workers": 2, "auth_type": "trust"}
    far = await start_fleet(**settings, peer_id=2)
    near = await start_fleet(**settings, peer_id=1, sections=f"[peers]\n2 = host=127.0.0.1 port={far.port} long_keys=1")
    async with ways_into(far) as theirs, ways_into(near) as ours:
        for protocol in (PROTOCOL_3_0, PROTOCOL_3_2):
            sessions = [await log_in(theirs[front], protocol) for front in FRONTS * 2]
            for session in sessions:
                session.send(SLEEP)
            await until(lambda sessions=sessions: len(far.site.admin.running("pg_sleep")) == len(sessions))  # type: ignore[misc]
            for number, session in enumerate(sessions):
                await send(ours[FRONTS[number // 2]], session.cancel_request())
                assert await errors(session) == [CANCELLED]
        # Both workers have forwarded some; a peer is one row all the same.
        assert [row[:5] for row in await show(near, "PEER_POOLS")] == [(2, 0, 0, 0, 0)]
        assert ("peer_pools", 1) in [row[:2] for row in await show(near, "LISTS")]


async def show(fleet: LocalFleet, what: str) -> list[tuple[Any, ...]]:
    def ask() -> list[tuple[Any, ...]]:
        login = fleet.conninfo("unix", user="pgtrunk", password=None, dbname="pgbouncer")
        with psycopg.connect(**login, autocommit=True) as connection:
            return connection.execute(f"SHOW {what}".encode()).fetchall()

    return await asyncio.to_thread(ask)


# -- many at once ------------------------------------------------------------------------------------------------------

VICTIMS: Final = 30


class Bystanders:
    """Sessions that ask one query after the other, and must never hear of a cancel."""

    def __init__(self, sessions: list[RawSession]) -> None:
        self.queries = 0
        self._is_over = False
        self._tasks = [asyncio.create_task(self._ask(session, number)) for number, session in enumerate(sessions)]

    async def _ask(self, session: RawSession, number: int) -> None:
        dice = random.Random(number)
        while not self._is_over:
            session.send(frontend.query(b"SELECT pg_sleep(%f)" % dice.choice((0.0, 0.0, 0.001, 0.01))))
            assert await errors(session) == []
            self.queries += 1

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


async def storm(start_fleet: StartFleet, rounds: int) -> None:
    """In each round ``VICTIMS`` sessions over four workers run something, and all are cancelled at once by all fronts,
    among requests with wrong keys, and such that come too late."""
    fleet = await start_fleet(workers=4, auth_type="trust", default_pool_size=VICTIMS + 20, login_failure_limit=0)
    dice = random.Random(rounds)
    async with ways_into(fleet) as ways:
        victims = [await log_in(ways[FRONTS[number % 3]]) for number in range(VICTIMS)]
        idle = [await log_in(ways[FRONTS[number % 3]]) for number in range(6)]
        bystanders = Bystanders([await log_in(ways[FRONTS[number % 3]]) for number in range(6)])
        assert all(fleet.spread())
        try:
            for _ in range(rounds):
                for session in victims:
                    session.send(SLEEP)
                await until(lambda: len(fleet.site.admin.running("pg_sleep(60)")) == VICTIMS)
                requests = [session.cancel_request() for session in (*victims, *idle)]
                requests += [CancelRequest(dice.getrandbits(30), dice.randbytes(4)).encode() for _ in range(6)]
                dice.shuffle(requests)
                await asyncio.gather(*(send(ways[dice.choice(FRONTS)], request) for request in requests))
                assert [await errors(session) for session in victims] == [[CANCELLED]] * VICTIMS
                assert not any(session.has_answer for session in (*victims, *idle))
        finally:
            await bystanders.end()
        assert bystanders.queries > 0
        counters = [await fleet.counters(index) for index in range(4)]
        assert [each["cancels"] for each in counters] == [0] * 4


async def test_a_hundred_racing_over_four_workers(start_fleet: StartFleet) -> None:
    await storm(start_fleet, 4)


@pytest.mark.long
async def test_a_thousand_racing_over_four_workers(start_fleet: StartFleet) -> None:
    await storm(start_fleet, 34)
