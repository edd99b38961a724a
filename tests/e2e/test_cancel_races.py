"""A thousand cancels against a thousand fast queries, over fewer backends than sessions: whom they hit.

Each session waits for the end of its cancel before it asks for more, as libpq and asyncpg do. So a cancel can only hit
the query that it was sent for, and whatever else is cancelled was hit wrongly.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from helpers.raw_session import Message, RawSession
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk_gateway.cancel.outcome import Outcome

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

CANCELLED: Final = "57014"
SESSIONS: Final = 6
BACKENDS: Final = 3
DURATIONS: Final = (0.0, 0.0, 0.0005, 0.001, 0.003)
"""Seconds that a query takes,"""
DELAYS: Final = (0.0, 0.0005, 0.001, 0.002, 0.02)
"""and that a cancel comes after it. The last is always too late."""
COUNTS: Final = [1000, pytest.param(10_000, marks=pytest.mark.long)]


@dataclass
class Race:
    """What happens, and what was seen of it."""

    gateway: LocalGateway
    way: Way
    left: int
    """Cancels still to be sent."""
    dice: random.Random = field(default_factory=lambda: random.Random(5))
    hits: int = 0
    over: bool = False

    # -- raw sessions

    async def ask(self, session: RawSession, number: int) -> list[str]:
        """Asks something that does not take long -> the SQLSTATEs of errors. Some of it changes a setting, which has to
        follow the session ``number``."""
        sql = b"SELECT pg_sleep(%f)" % self.dice.choice(DURATIONS)
        match self.dice.choices(("simple", "extended", "setting"), (4, 4, 1))[0]:
            case "simple":
                session.send(frontend.query(sql))
            case "extended":
                batch = frontend.parse(b"", sql), frontend.bind(b"", b""), frontend.execute(), frontend.SYNC_MESSAGE
                session.send(*batch)
            case _:
                session.send(frontend.query(b"SET lock_timeout = '%ds'; %b" % (number + 1, sql)))
        return errors(await session.until_ready())

    async def cancel(self, session: RawSession) -> None:
        await asyncio.sleep(self.dice.choice(DELAYS))
        connection = await RawSession.open(self.gateway, self.way)
        connection.send(session.cancel_request())
        assert await connection.until_lost() == []
        self.gateway.raw_sessions.remove(connection)

    async def be_cancelled(self, session: RawSession, number: int) -> None:
        while self.left:
            self.left -= 1
            cancel = asyncio.create_task(self.cancel(session))
            told = await self.ask(session, number)
            assert told in ([], [CANCELLED])
            self.hits += len(told)
            await cancel
            # Nobody has cancelled this one.
            assert await self.ask(session, number) == []

    async def be_left_alone(self, session: RawSession, number: int) -> int:
        queries = 0
        while not self.over:
            assert await self.ask(session, number) == []
            queries += 1
        return queries

    # -- asyncpg

    async def time_out(self, session: asyncpg.Connection) -> None:
        """asyncpg cancels what it does not wait for any more, and waits for that before it asks for more."""
        while self.left:
            self.left -= 1
            patience = self.dice.choice((0.0005, 0.001, 0.002, 0.004))
            ask = partial(session.fetchval, "SELECT 1 FROM pg_sleep($1)", self.dice.choice(DURATIONS))
            try:
                if self.dice.random() < 0.5:
                    assert await ask(timeout=patience) == 1
                else:
                    # By task.cancel().
                    assert await asyncio.wait_for(ask(), patience) == 1
            except TimeoutError:
                self.hits += 1
            number = self.dice.randrange(1 << 30)
            assert await session.fetchval("SELECT $1::int", number) == number

    async def go_on(self, session: asyncpg.Connection) -> int:
        queries = 0
        while not self.over:
            await session.fetchval("SELECT 1 FROM pg_sleep($1)", self.dice.choice(DURATIONS))
            queries += 1
        return queries

    # -- the end

    async def finish(self, pids: set[int]) -> dict[Outcome, int]:
        """Checks that all is counted and nothing lost -> what has become of the cancels."""
        cancels = self.gateway.gateway.cancels
        await until(lambda: self.gateway.counts(leased=0, waiting=0, cancels=0))
        outcomes = dict(cancels.outcomes)
        assert cancels.received == sum(outcomes.values())
        assert outcomes.keys() <= {Outcome.CARRIED, Outcome.REFUSED, Outcome.OVERTAKEN, Outcome.IDLE}
        assert cancels.sent <= outcomes.get(Outcome.CARRIED, 0)
        assert self.gateway.backend_pids == pids
        return outcomes


def errors(messages: list[Message]) -> list[str]:
    return [message.error.sqlstate for message in messages if message.kind == "E"]


async def shown(session: RawSession, setting: str) -> bytes:
    session.send(frontend.query(f"SHOW {setting}".encode()))
    (row,) = [message.body for message in await session.until_ready() if message.kind == "D"]
    return row[6:]


async def backends(gateway: LocalGateway, sessions: list[RawSession]) -> set[int]:
    """Has all of the pool's backends opened -> their pids."""
    for session in sessions:
        session.send(frontend.query(b"SELECT pg_sleep(0.05)"))
    for session in sessions:
        await session.until_ready()
    assert gateway.counts(backends=BACKENDS)
    return gateway.backend_pids


@pytest.mark.parametrize("count", COUNTS)
async def test_raw_sessions(start: Start, pooled: Way, count: int) -> None:
    gateway = await start(default_pool_size=BACKENDS, auth_type="trust", log_connections=0, log_disconnections=0)
    # Each with a name of its own: there are settings to make in most leases.
    sessions = [
        await RawSession.start(gateway, pooled, application_name=f"racer {number}") for number in range(SESSIONS)
    ]
    pids = await backends(gateway, sessions)
    race = Race(gateway, pooled, count)
    bystanders = [asyncio.create_task(race.be_left_alone(sessions[number], number)) for number in (0, 1)]
    await asyncio.gather(*(race.be_cancelled(sessions[number], number) for number in range(2, SESSIONS)))
    race.over = True
    assert all(await asyncio.gather(*bystanders))
    outcomes = await race.finish(pids)
    assert sum(outcomes.values()) == count
    assert gateway.gateway.cancels.sent == outcomes[Outcome.CARRIED]
    assert outcomes.get(Outcome.REFUSED, 0) <= race.hits <= outcomes.get(Outcome.REFUSED, 0) + outcomes[Outcome.CARRIED]
    for number, session in enumerate(sessions):
        assert await shown(session, "application_name") == f"racer {number}".encode()
        assert await shown(session, "lock_timeout") == f"{number + 1}s".encode()
    # It was a race: some came in time, and some did not.
    assert race.hits > 0
    assert outcomes.get(Outcome.IDLE, 0) + outcomes.get(Outcome.OVERTAKEN, 0) > 0


@pytest.mark.parametrize("count", COUNTS)
async def test_asyncpg(start: Start, pooled: Way, count: int) -> None:
    gateway = await start(default_pool_size=BACKENDS, auth_type="trust", log_connections=0, log_disconnections=0)
    raw = [await RawSession.start(gateway, pooled) for _ in range(BACKENDS)]
    pids = await backends(gateway, raw)
    victims = [await gateway.connect(pooled) for _ in range(SESSIONS - 2)]
    bystanders = [await gateway.connect(pooled) for _ in range(2)]
    race = Race(gateway, pooled, count)
    going_on = [asyncio.create_task(race.go_on(session)) for session in bystanders]
    await asyncio.gather(*(race.time_out(session) for session in victims))
    race.over = True
    assert all(await asyncio.gather(*going_on))
    outcomes = await race.finish(pids)
    # One that timed out before anything was sent had nothing to cancel.
    assert 0 < sum(outcomes.values()) <= race.hits
