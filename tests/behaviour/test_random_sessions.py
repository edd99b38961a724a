"""Random conversations of several sessions, over more backends than sessions: each hears what it would hear on a
connection of its own.

Sessions take turns; each transaction gets another backend; what is written is cut anywhere. For more examples than
anybody waits for in every run:

    PGTRUNK_EXAMPLES=100000 make test-long ARGS=tests/behaviour/test_random_sessions.py
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, settings

from behaviour.differences import PINNED
from behaviour.fronts import Front
from behaviour.improvised import ROLE, SESSIONS, STARTUPS, closing, conversations, ending
from behaviour.wire import Wire, lines
from helpers.postgres import create_database
from helpers.processes import gateway_process
from helpers.site import USER, Admin
from pgtrunk.wire.frontend import query

if TYPE_CHECKING:
    from behaviour.improvised import Flight
    from helpers.raw_session import RawSession
    from helpers.site import Site

PIECE: Final = 5_000
"""Examples of one test."""
PIECES: Final = max(1, int(os.environ.get("PGTRUNK_EXAMPLES", PIECE)) // PIECE)
LOCAL: Final = "NoticeResponse WARNING 25P01 SET LOCAL can only be used in transaction blocks"
SHARED, OWN = "improvised", "improvised_directly"
"""The databases behind the gateway, and behind the sessions' own connections: two, since the same is done in both."""

over_and_over = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
"""The connections go from one example to the next. What fails is made small, which takes minutes, and not explained."""


@pytest.fixture(scope="module")
def databases(site: Site) -> Iterator[None]:
    site.admin.execute(f"CREATE ROLE {ROLE}; GRANT {ROLE} TO app")
    for name in (SHARED, OWN):
        asyncio.run(create_database(site.postgres, name, owner=USER))
        admin = Admin(site.postgres, name)
        for number in range(SESSIONS):
            admin.execute("SELECT set_config('own.name', %s, false)", f"own_{number}")
            admin.execute(
                "DO $$ DECLARE name text := current_setting('own.name'); BEGIN"
                " EXECUTE format('CREATE TABLE %I (n int)', name);"
                " EXECUTE format('ALTER TABLE %I OWNER TO app', name);"
                f" EXECUTE format('GRANT SELECT ON %I TO {ROLE}', name); END $$"
            )
        admin.close()
    yield
    site.admin.execute(f"DROP DATABASE {SHARED} WITH (FORCE)")
    site.admin.execute(f"DROP DATABASE {OWN} WITH (FORCE)")
    site.admin.execute(f"DROP ROLE {ROLE}")


@pytest.fixture(scope="module")
def turning(site: Site, databases: None) -> Iterator[Front]:
    """A gateway that uses its backends in turn, of which there are more than sessions."""
    target = site.target(f"dbname={SHARED} pool_size={SESSIONS + 1} min_pool_size={SESSIONS + 1}")
    with gateway_process(site, databases={SHARED: target}, server_round_robin=1) as gateway:
        yield Front("127.0.0.1", gateway.port())


class Company:
    """The sessions, and for each a connection of its own to Postgres, which is told the same."""

    def __init__(self, turning: Front, direct: Front) -> None:
        self._shared, self._direct = Wire(turning, None), Wire(direct, None)
        self._pairs: list[tuple[RawSession, RawSession]] = []
        self._failed = [False] * SESSIONS
        """Whether each is in a transaction that has failed."""

    async def hold(self, conversation: list[tuple[int, Flight]]) -> None:
        """Holds it on both sides. When they differ, the next one has connections of its own."""
        try:
            if not self._pairs:
                await self._open()
            for at, (who, flight) in enumerate(conversation):
                await self._exchange(who, flight, f"flight {at} of {conversation}")
            for last in (closing, ending):
                await asyncio.gather(*(self._exchange(who, last(who), str(conversation)) for who in range(SESSIONS)))
        except BaseException:
            self.close()
            raise

    async def _open(self) -> None:
        for number, startup in enumerate(STARTUPS):
            pair = await self._shared.log_in(SHARED, **startup), await self._direct.log_in(OWN, **startup)
            self._pairs.append(pair)
            for session in pair:
                # What there is may be of one that has failed.
                await session.ask(query(b"truncate own_%d" % number))

    async def _exchange(self, who: int, flight: Flight, of: str) -> None:
        failed = self._failed[who]
        ours, theirs = await asyncio.gather(*(heard(session, flight, failed) for session in self._pairs[who]))
        assert ours == theirs, of
        self._failed[who] = theirs[-1] in ("failed", "ReadyForQuery E") or (failed and theirs[-1] != "ReadyForQuery I")

    def close(self) -> None:
        self._shared.close()
        self._direct.close()
        self._shared.sessions, self._direct.sessions, self._pairs = [], [], []
        self._failed = [False] * SESSIONS


async def heard(session: RawSession, flight: Flight, failed: bool) -> list[str]:
    """What comes of ``flight``; ``failed``: the session is in a transaction that has failed."""
    if session.is_lost.is_set():
        return ["closed"]
    at = 0
    for cut in (*flight.cuts, len(flight.data)):
        session.send(flight.data[at:cut])
        at = cut
        await asyncio.sleep(0)
    told = [message for end in flight.ends for message in await session.until(end)]
    return alike(lines(told), failed)


def alike(told: list[str], failed: bool) -> list[str]:
    """Without what may differ: the notice of a backend that is kept, the warning that SET LOCAL is outside of a block,
    the name in an error of a statement with several, and how things are refused in a transaction that has failed."""
    out: list[str] = []
    answer: list[str] = []
    for text in told:
        if text.startswith((PINNED, LOCAL)):
            continue
        answer.append(re.sub('"n[0-9]+"', "one of its names", text) if text.startswith("ErrorResponse") else text)
        if text.startswith("ReadyForQuery"):
            fails = text.endswith("E")
            out += ["failed"] if failed and fails else answer
            failed, answer = fails, []
    return out + answer


@pytest_asyncio.fixture
async def company(site: Site, turning: Front) -> AsyncIterator[Company]:
    company = Company(turning, Front(site.postgres.host, site.postgres.port))
    yield company
    company.close()


@pytest.mark.timeout(600)
@settings(over_and_over, max_examples=1_000)
@given(conversations())
async def test_each_session_hears_what_postgres_says(company: Company, conversation: list[tuple[int, Flight]]) -> None:
    await company.hold(conversation)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("piece", range(PIECES))
@settings(over_and_over, max_examples=PIECE)
@given(conversation=conversations())
async def test_so_does_each_of_many(company: Company, piece: int, conversation: list[tuple[int, Flight]]) -> None:
    await company.hold(conversation)
