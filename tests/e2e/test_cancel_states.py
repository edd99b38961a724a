"""A cancel in each state of a session, by each front, and to Postgres itself: the client sees the same by all of them.

What Postgres has no word for, a session that waits for a backend or for its settings, is told in Postgres' words too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.every_front import EVERY_FRONT, by_front, directly, settings_for
from helpers.proxies import Gate, gate
from helpers.site import DATABASE
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.outcome import Outcome

if TYPE_CHECKING:
    from behaviour.wire import Wire
    from helpers.gateways import LocalGateway, Start
    from helpers.raw_session import RawSession
    from helpers.site import Site

LONG: Final = "SELECT pg_sleep(60)"
SLEEP: Final = frontend.query(LONG.encode())
SELECT: Final = frontend.query(b"SELECT 1")
BEGIN, COMMIT, ROLLBACK = (frontend.query(text) for text in (b"BEGIN", b"COMMIT", b"ROLLBACK"))
ROW: Final = "T D C ZI"
CANCELLED: Final = "E57014 ZI"
ASLEEP: Final = f"T {CANCELLED}"
"""The answer to `SLEEP` once it runs: what columns it would have had, and the error."""
ROWS: Final = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT"
"""1 GB, of which hardly anything is sent."""


def extended(sql: bytes) -> bytes:
    """Without Sync."""
    return frontend.parse(b"", sql) + frontend.bind(b"", b"") + frontend.execute()


EXTENDED_SLEEP: Final = extended(LONG.encode())
EXTENDED_SELECT: Final = extended(b"SELECT 1")
SYNC: Final = frontend.SYNC_MESSAGE


@dataclass
class Stage:
    """One front, and who is behind it."""

    wire: Wire
    site: Site
    gateway: LocalGateway | None
    gate: Gate | None = None

    async def log_in(self, **settings: str) -> RawSession:
        return await self.wire.log_in(**settings)

    def counts(self, **expected: int) -> bool:
        """Whether the gateway's counters are these; straight to Postgres there is none."""
        return self.gateway is None or self.gateway.counts(**expected)

    async def running(self, text: str = "pg_sleep(60)", times: int = 1) -> None:
        await until(lambda: len(self.site.admin.running(text)) == times)

    async def cancel(self, session: RawSession, outcome: Outcome, request: bytes | None = None) -> None:
        """Cancels, and returns when that has had its effect: the other side hangs up without a word."""
        before = self.outcomes
        connection = await self.wire.open()
        connection.send(request or session.cancel_request())
        assert await connection.until_lost() == []
        assert connection.octets == b""
        if self.gateway is not None:
            assert self.outcomes - before == {outcome: 1}

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter() if self.gateway is None else Counter(self.gateway.gateway.cancels.outcomes)


async def said(session: RawSession, times: int = 1) -> str:
    """What is said up to ReadyForQuery, or that many of them: kinds, errors with SQLSTATE; COPY's rows are left out."""
    told = []
    for message in await session.until_ready(times):
        if message.kind == "E":
            told.append(f"E{message.error.sqlstate}")
        elif message.kind == "Z":
            told.append(f"Z{message.body.decode()}")
        elif message.kind not in "SNd":
            told.append(message.kind)
    return " ".join(told)


async def ask(session: RawSession, *data: bytes) -> str:
    session.send(*data)
    return await said(session)


async def hold(session: RawSession) -> None:
    """A transaction that has a backend."""
    assert await ask(session, BEGIN) == "C ZT"
    assert await ask(session, SELECT) == "T D C ZT"


# -- the states --------------------------------------------------------------------------------------------------------


async def running_simple(stage: Stage) -> None:
    session = await stage.log_in()
    session.send(SLEEP)
    await stage.running()
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session) == ASLEEP
    assert await ask(session, SELECT) == ROW


async def running_extended(stage: Stage) -> None:
    session = await stage.log_in()
    session.send(EXTENDED_SLEEP, SYNC)
    await stage.running()
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session) == "1 2 E57014 ZI"
    assert await ask(session, EXTENDED_SELECT, SYNC) == "1 2 D C ZI"


async def waiting(stage: Stage) -> None:
    holder, waiter = await stage.log_in(), await stage.log_in()
    await hold(holder)
    for request in (SELECT, EXTENDED_SELECT + SYNC):
        waiter.send(request)
        await until(lambda: stage.counts(waiting=1))
        await stage.cancel(waiter, Outcome.REFUSED)
        assert await said(waiter) == CANCELLED
        assert stage.counts(waiting=0)
    assert await ask(holder, COMMIT) == "C ZI"
    assert await ask(waiter, SELECT) == ROW


async def waiting_with_a_pipeline(stage: Stage) -> None:
    """The first is refused, and what is behind it goes on waiting, as a backend would go on with it."""
    holder, waiter = await stage.log_in(), await stage.log_in()
    await hold(holder)
    waiter.send(SELECT, EXTENDED_SELECT, SYNC, SELECT)
    for _ in range(2):
        await until(lambda: stage.counts(waiting=1))
        await stage.cancel(waiter, Outcome.REFUSED)
        assert await said(waiter) == CANCELLED
    await until(lambda: stage.counts(waiting=1))
    assert await ask(holder, COMMIT) == "C ZI"
    assert await said(waiter) == ROW


async def pool_full(stage: Stage) -> None:
    """A cancel needs no backend, neither for one that waits nor for one that runs; the next in the queue is not hit."""
    first, second, third = [await stage.log_in() for _ in range(3)]
    for number, session in enumerate((first, second, third)):
        session.send(SLEEP)
        await stage.running()
        await until(lambda number=number: stage.counts(waiting=number))  # type: ignore[misc]
    await stage.cancel(second, Outcome.REFUSED)
    assert await said(second) == CANCELLED
    await stage.cancel(first, Outcome.CARRIED)
    assert await said(first) == ASLEEP
    await until(lambda: stage.counts(waiting=0, leased=1))
    await stage.running()
    assert not third.has_answer
    await stage.cancel(third, Outcome.CARRIED)
    assert await said(third) == ASLEEP
    for session in (third, first, second):
        assert await ask(session, SELECT) == ROW


async def copy_in(stage: Stage) -> None:
    """Postgres looks whether it is cancelled when the next row has come."""
    session = await stage.log_in()
    session.send(frontend.query(b"COPY cancel_rows FROM STDIN"))
    await session.until("G")
    await stage.cancel(session, Outcome.CARRIED)
    session.send(frontend.copy_data(b"1\n"))
    assert await said(session) == CANCELLED
    assert await ask(session, SELECT) == ROW
    assert stage.site.admin.value("SELECT count(*) FROM cancel_rows") == 0


async def copy_in_extended(stage: Stage) -> None:
    """As asyncpg does it, with a Sync that comes early, and one behind the end."""
    session = await stage.log_in()
    session.send(extended(b"COPY cancel_rows FROM STDIN"), SYNC)
    await session.until("G")
    await stage.cancel(session, Outcome.CARRIED)
    session.send(frontend.copy_data(b"1\n"), frontend.COPY_DONE_MESSAGE, SYNC)
    assert await said(session) == CANCELLED
    assert await ask(session, SELECT) == ROW
    assert stage.site.admin.value("SELECT count(*) FROM cancel_rows") == 0


async def copy_out(stage: Stage) -> None:
    """The client does not read meanwhile: the cancel gets past all that is in its way."""
    session = await stage.log_in()
    session.send(frontend.query(ROWS.encode()))
    await session.until("d")
    session.transport.pause_reading()
    await stage.cancel(session, Outcome.CARRIED)
    session.transport.resume_reading()
    assert await said(session) == CANCELLED
    assert await ask(session, SELECT) == ROW


async def pipeline_of_queries(stage: Stage) -> None:
    session = await stage.log_in()
    session.send(SLEEP, SELECT, SELECT)
    await stage.running()
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session, 3) == f"{ASLEEP} {ROW} {ROW}"


async def pipeline_of_batches(stage: Stage) -> None:
    session = await stage.log_in()
    session.send(EXTENDED_SLEEP, SYNC, EXTENDED_SELECT, SYNC, EXTENDED_SELECT, SYNC)
    await stage.running()
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session, 3) == "1 2 E57014 ZI 1 2 D C ZI 1 2 D C ZI"


async def pipeline_in_one_batch(stage: Stage) -> None:
    """What follows the first is skipped to Sync."""
    session = await stage.log_in()
    session.send(EXTENDED_SLEEP, EXTENDED_SELECT, EXTENDED_SELECT, SYNC)
    await stage.running()
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session) == "1 2 E57014 ZI"
    assert await ask(session, SELECT) == ROW


async def in_a_transaction(stage: Stage) -> None:
    session = await stage.log_in()
    await hold(session)
    session.send(SLEEP)
    await stage.running()
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session) == "T E57014 ZE"
    assert await ask(session, SELECT) == "E25P02 ZE"
    assert await ask(session, ROLLBACK) == "C ZI"
    assert await ask(session, SELECT) == ROW


async def idle(stage: Stage) -> None:
    session = await stage.log_in()
    await stage.cancel(session, Outcome.IDLE)
    assert await ask(session, SELECT) == ROW
    await stage.cancel(session, Outcome.IDLE)
    assert await ask(session, EXTENDED_SELECT, SYNC) == "1 2 D C ZI"


async def idle_in_transaction(stage: Stage) -> None:
    session = await stage.log_in()
    await hold(session)
    await stage.cancel(session, Outcome.IDLE)
    assert await ask(session, SELECT) == "T D C ZT"
    await stage.cancel(session, Outcome.IDLE)
    assert await ask(session, COMMIT) == "C ZI"


async def begun(stage: Stage) -> None:
    """Postgres need not know of the transaction yet."""
    session = await stage.log_in()
    assert await ask(session, BEGIN) == "C ZT"
    await stage.cancel(session, Outcome.IDLE)
    assert await ask(session, SELECT) == "T D C ZT"
    assert await ask(session, COMMIT) == "C ZI"


async def waiting_in_a_transaction(stage: Stage) -> None:
    """Its first request is refused, and so the transaction has failed, as in Postgres."""
    holder, waiter = await stage.log_in(), await stage.log_in()
    await hold(holder)
    assert await ask(waiter, BEGIN) == "C ZT"
    waiter.send(SELECT)
    await until(lambda: stage.counts(waiting=1))
    await stage.cancel(waiter, Outcome.REFUSED)
    assert await said(waiter) == "E57014 ZE"
    assert await ask(holder, COMMIT) == "C ZI"
    assert await ask(waiter, SELECT) == "E25P02 ZE"
    assert await ask(waiter, ROLLBACK) == "C ZI"
    assert await ask(waiter, SELECT) == ROW


async def settings(stage: Stage) -> None:
    """They are on their way to the backend, with the query behind them. That one is cancelled, and they remain."""
    assert stage.gate is not None
    assert stage.gateway is not None
    session = await stage.log_in(application_name="cancelled")
    stage.gate.hold()
    session.send(SLEEP)
    await until(lambda: stage.counts(leased=1))
    connection = await stage.wire.open()
    connection.send(session.cancel_request())
    await until(lambda: stage.counts(cancels=1))
    await asyncio.sleep(0.05)
    assert stage.gateway.gateway.cancels.sent == 0
    stage.gate.let_pass()
    assert await connection.until_lost() == []
    answer = asyncio.create_task(said(session))
    while not (await asyncio.wait([answer], timeout=1))[0]:
        # It came before Postgres had begun with the query: it is the client who has to ask again, as everywhere.
        await stage.running()
        await stage.cancel(session, Outcome.CARRIED)
    assert await answer == ASLEEP
    session.send(frontend.query(b"SHOW application_name"))
    (name,) = [message.body for message in await session.until_ready() if message.kind == "D"]
    assert name.endswith(b"cancelled")


async def session_ended(stage: Stage) -> None:
    """Whoever has its backend now is not hit."""
    gone, other = await stage.log_in(), await stage.log_in()
    assert await ask(gone, SELECT) == ROW
    gone.send(frontend.TERMINATE_MESSAGE)
    await gone.until_lost()
    await until(lambda: stage.counts(admitted=1))
    other.send(SLEEP)
    await stage.running()
    await stage.cancel(gone, Outcome.ENDED)
    await still_runs(stage, other)


async def wrong_key(stage: Stage) -> None:
    session = await stage.log_in()
    session.send(SLEEP)
    await stage.running()
    assert session.key is not None
    pid, secret = session.key.pid, session.key.secret
    wrong = CancelRequest(pid, bytes([secret[0] ^ 1]) + secret[1:])
    await stage.cancel(session, Outcome.UNKNOWN, wrong.encode())
    await still_runs(stage, session)


async def still_runs(stage: Stage, session: RawSession) -> None:
    """What was not meant by a cancel has not been hit by it."""
    await asyncio.sleep(0.02)
    await stage.running()
    assert not session.has_answer
    await stage.cancel(session, Outcome.CARRIED)
    assert await said(session) == ASLEEP


State = Callable[[Stage], Awaitable[None]]
ANYWHERE: Final[tuple[State, ...]] = (
    running_simple,
    running_extended,
    copy_in,
    copy_in_extended,
    copy_out,
    pipeline_of_queries,
    pipeline_of_batches,
    pipeline_in_one_batch,
    in_a_transaction,
    idle,
    idle_in_transaction,
    begun,
    session_ended,
    wrong_key,
)
POOLED: Final[tuple[State, ...]] = (waiting, waiting_with_a_pipeline, waiting_in_a_transaction, pool_full)
"""States that only a pooler has."""
CELLS: Final = [
    *(("direct", state) for state in ANYWHERE),
    *((front, state) for front in EVERY_FRONT for state in (*ANYWHERE, *POOLED, settings)),
]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def cancel_rows(site: Site) -> Iterator[None]:
    site.admin.execute("CREATE TABLE cancel_rows (n int)")
    site.admin.execute("GRANT ALL ON cancel_rows TO PUBLIC")
    yield
    site.admin.execute("DROP TABLE cancel_rows")


@contextlib.asynccontextmanager
async def stage_of(start: Start, site: Site, front: str, state: State) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as stack:
        if front == "direct":
            yield Stage(await stack.enter_async_context(directly(site)), site, None)
            return
        own: dict[str, Any] = settings_for(front, site)
        proxy = None
        if state is settings:
            proxy = await stack.enter_async_context(gate(site.postgres.host, site.postgres.port))
            own["databases"] = {DATABASE: f"host=127.0.0.1 port={proxy.port}"}
        elif state in POOLED:
            own |= {"default_pool_size": 1, "query_wait_notify": 0}
        gateway = await start(**own)
        yield Stage(await stack.enter_async_context(by_front(gateway, front)), site, gateway, proxy)


@pytest.mark.parametrize(("front", "state"), CELLS, ids=lambda value: getattr(value, "__name__", value))
async def test_each_state_by_each_front(start: Start, site: Site, front: str, state: State) -> None:
    async with stage_of(start, site, front, state) as stage:
        await state(stage)
