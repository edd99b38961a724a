"""Cancel requests with wrong keys: slowed down by address, whatever the front, and nobody else's affair."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from helpers.raw_session import RawSession
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.outcome import Outcome

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

SLEEP: Final = frontend.query(b"SELECT pg_sleep(60)")
SELECT: Final = frontend.query(b"SELECT 1")
CANCELLED: Final = "57014"
ELSEWHERE: Final = "127.0.0.2"


async def ask_from(gateway: LocalGateway, way: Way, request: bytes) -> None:
    """Sends a request, and returns when the gateway has hung up, without a word."""
    connection = await RawSession.open(gateway, way)
    connection.send(request)
    assert await connection.until_lost() == []


async def ask_from_elsewhere(gateway: LocalGateway, request: bytes) -> None:
    """The same over TCP from another address."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(RawSession, "127.0.0.1", gateway.port, local_addr=(ELSEWHERE, 0))
    gateway.raw_sessions.append(connection)
    connection.send(request)
    assert await connection.until_lost() == []


def wrong(number: int) -> bytes:
    return CancelRequest(number + 1, b"nope").encode()


async def errors(session: RawSession) -> list[str]:
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


async def run(gateway: LocalGateway, session: RawSession) -> None:
    session.send(SLEEP)
    await until(lambda: gateway.site.admin.running("pg_sleep(60)"))


async def test_a_flood_of_wrong_keys_is_nobody_elses_affair(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", login_failure_window=3600)
    cancels = gateway.gateway.cancels
    session = await RawSession.start(gateway, pooled)
    left = iter(range(500))

    async def flood() -> None:
        for number in left:
            await ask_from_elsewhere(gateway, wrong(number))

    floods = [asyncio.create_task(flood()) for _ in range(20)]
    hits = 0
    while hits < 5 or not all(task.done() for task in floods):
        await run(gateway, session)
        await ask_from(gateway, pooled, session.cancel_request())
        assert await errors(session) == [CANCELLED]
        hits += 1
    await asyncio.gather(*floods)
    assert cancels.outcomes == {Outcome.UNKNOWN: 10, Outcome.LIMITED: 490, Outcome.CARRIED: hits}
    assert cancels.received == 500 + hits
    assert len(cancels.limiter) == 1
    assert len(cancels) == 0
    # There a right one is not looked at either, or the limit would be none; but who logs in is not concerned.
    await run(gateway, session)
    await ask_from_elsewhere(gateway, session.cancel_request())
    assert cancels.outcomes[Outcome.LIMITED] == 491
    assert len(gateway.gateway.context.limiter) == 0
    await ask_from(gateway, pooled, session.cancel_request())
    assert await errors(session) == [CANCELLED]


async def test_the_front_makes_no_difference_but_for_the_unix_socket(start: Start) -> None:
    gateway = await start(auth_type="trust", login_failure_limit=4, login_failure_window=3600)
    cancels = gateway.gateway.cancels
    session = await RawSession.start(gateway, "tcp")
    for number, way in enumerate(("tcp", "quic") * 3):
        await ask_from(gateway, way, wrong(number))  # type: ignore[arg-type]
    assert cancels.outcomes == {Outcome.UNKNOWN: 4, Outcome.LIMITED: 2}
    await run(gateway, session)
    for way in ("tcp", "quic"):
        await ask_from(gateway, way, session.cancel_request())  # type: ignore[arg-type]
    assert cancels.outcomes == {Outcome.UNKNOWN: 4, Outcome.LIMITED: 4}
    for number in range(10):
        await ask_from(gateway, "unix", wrong(number))
    await ask_from(gateway, "unix", session.cancel_request())
    assert await errors(session) == [CANCELLED]
    assert cancels.outcomes == {Outcome.UNKNOWN: 14, Outcome.LIMITED: 4, Outcome.CARRIED: 1}


async def test_it_passes(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust", login_failure_limit=2, login_failure_window=1)
    session = await RawSession.start(gateway, pooled)
    for number in range(5):
        await ask_from(gateway, pooled, wrong(number))
    await run(gateway, session)
    while not session.has_answer:
        await ask_from(gateway, pooled, session.cancel_request())
        await asyncio.sleep(0.1)
    assert await errors(session) == [CANCELLED]


async def test_keys_of_sessions_that_have_ended_are_no_guesses(start: Start, pooled: Way) -> None:
    """A driver that cancels what it has just closed, again and again, keeps nobody from cancelling."""
    gateway = await start(auth_type="trust", login_failure_limit=1, login_failure_window=3600)
    for _ in range(5):
        gone = await RawSession.start(gateway, pooled)
        assert await gone.ask(SELECT) == "TDCZI"
        gone.abort()
        await until(lambda: gateway.counts(admitted=0))
        await ask_from(gateway, pooled, gone.cancel_request())
    assert gateway.gateway.cancels.outcomes == {Outcome.ENDED: 5}
    session = await RawSession.start(gateway, pooled)
    await run(gateway, session)
    await ask_from(gateway, pooled, session.cancel_request())
    assert await errors(session) == [CANCELLED]


async def test_a_reload(start: Start) -> None:
    gateway = await start(auth_type="trust", login_failure_limit=0)
    for number in range(20):
        await ask_from(gateway, "tcp", wrong(number))
    gateway.gateway.operations.set("login_failure_limit", "3")
    for number in range(20):
        await ask_from(gateway, "tcp", wrong(number))
    assert gateway.gateway.cancels.outcomes == {Outcome.UNKNOWN: 23, Outcome.LIMITED: 17}
