"""Clients whose address changes in the middle of a query, a transaction, a COPY in and a COPY out: nothing is lost and
nothing comes twice, whatever the number of workers, and though packets are lost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.datagrams import relay
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import asyncpg

    from helpers.datagrams import Relay
    from helpers.fleets import LocalFleet, StartFleet

LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
ROWS: Final = 4_000
"""Of some 200 octets each."""

workers = pytest.mark.parametrize("workers", [1, 4])


def driver(session: asyncpg.Connection) -> Any:
    return session._transport.get_extra_info("quic_connection")


@contextlib.asynccontextmanager
async def behind(fleet: LocalFleet, number: int = 3) -> AsyncIterator[tuple[Relay, list[asyncpg.Connection]]]:
    """Sessions, each with a connection of its own, behind a network whose addresses change."""
    async with relay(fleet.quic_port, delay=0.003) as network, contextlib.AsyncExitStack() as stack:
        sessions = []
        for _ in range(number):
            trunk = await stack.enter_async_context(
                StreamManager(
                    f"127.0.0.1:{network.port}",
                    ca_file=str(fleet.site.certificates.ca_cert),
                    server_name="localhost",
                    transport="quic",
                    connections=1,
                )
            )
            sessions.append(await trunk.connect(**LOGIN))
        yield network, sessions
        for session in sessions:
            await session.close()


@contextlib.asynccontextmanager
async def rebinding(network: Relay, *, every: float = 0.15) -> AsyncIterator[list[int]]:
    """Meanwhile the clients' addresses change again and again."""
    done: list[int] = []

    async def go() -> None:
        while True:
            await asyncio.sleep(every)
            network.rebind()
            done.append(len(done))

    task = asyncio.create_task(go())
    try:
        yield done
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def lines(seed: int) -> bytes:
    rng = random.Random(seed)
    return b"".join(b"%d\t%d\t%s\n" % (seed, row, rng.randbytes(90).hex().encode()) for row in range(ROWS))


async def copy_in(session: asyncpg.Connection, data: bytes) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 60_000):
            yield data[start : start + 60_000]
            await asyncio.sleep(0)

    assert await session.copy_to_table("moving", source=parts(), format="text") == f"COPY {ROWS}"


async def copy_out(session: asyncpg.Connection, seed: int) -> bytes:
    found = io.BytesIO()
    await session.copy_from_query(
        f"SELECT seed, row, data FROM moving WHERE seed = {seed} ORDER BY row", output=found, format="text"
    )
    return found.getvalue()


async def copies(fleet: LocalFleet, *, one_in: int) -> None:
    async with behind(fleet, 2) as (network, sessions):
        await sessions[0].execute(
            "CREATE TABLE IF NOT EXISTS moving (seed int, row int, data text, PRIMARY KEY (seed, row)); TRUNCATE moving"
        )
        network.one_in = one_in
        wanted = [lines(seed) for seed in range(len(sessions))]
        async with rebinding(network) as done:
            await asyncio.gather(*(copy_in(*each) for each in zip(sessions, wanted, strict=True)))
            there = len(done)
            assert there
            found = await asyncio.gather(*(copy_out(session, seed) for seed, session in enumerate(sessions)))
            assert len(done) > there
        network.one_in = 0
        assert [hashlib.sha256(each).digest() for each in found] == [hashlib.sha256(each).digest() for each in wanted]
        assert await sessions[0].fetchval("SELECT count(*) FROM moving") == ROWS * len(sessions)


@pytest.mark.long
@workers
async def test_copies_both_ways_while_a_nat_forgets_them_and_packets_are_lost(
    start_fleet: StartFleet, workers: int
) -> None:
    await copies(await start_fleet(workers=workers), one_in=40)


async def queries(fleet: LocalFleet) -> None:
    """That run while a NAT forgets them."""
    async with behind(fleet) as (network, sessions):
        await sessions[0].execute("CREATE TABLE IF NOT EXISTS counted (n int); TRUNCATE counted")
        network.one_in = 25
        for turn in range(2):
            # It writes, so a query that ran twice would show; and its answer comes from an address that is gone.
            asked = [
                asyncio.create_task(
                    session.fetchval(
                        "WITH slow AS (SELECT pg_sleep(0.3)), "
                        f"done AS (INSERT INTO counted SELECT {turn} FROM slow RETURNING n) SELECT n FROM done"
                    )
                )
                for session in sessions
            ]
            await until(lambda: len(fleet.site.admin.running("pg_sleep")) == len(sessions))
            network.rebind()
            assert await asyncio.gather(*asked) == [turn] * len(sessions)
        network.one_in = 0
        assert fleet.site.admin.value("SELECT count(*) FROM counted") == 2 * len(sessions)


async def pings(fleet: LocalFleet) -> None:
    """Three times a PING is all that may leave for an address that is not validated; the challenge is part of that."""
    async with behind(fleet, 1) as (network, (session,)):
        asked = asyncio.create_task(session.fetchval("SELECT repeat('x', 300000) FROM pg_sleep(2.6)"))
        await asyncio.sleep(0.3)
        network.rebind()
        async with asyncio.timeout(10):
            assert await asked == "x" * 300_000


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[asyncpg.Connection], None]:
    """Makes the socket of a session's connection fail from now on, as if its interface were gone."""

    class Gone:
        def send(self, data: bytes) -> int:
            raise OSError(errno.ENETUNREACH, "network is unreachable")

    def break_it(session: asyncpg.Connection) -> None:
        path = driver(session).peername
        monkeypatch.setattr(path.socket, "_sock", Gone())

    return break_it


async def sockets(fleet: LocalFleet, breaking: Callable[[asyncpg.Connection], None]) -> None:
    """Another one in the middle of everything."""
    async with behind(fleet, 3) as (_, (querying, transacting, copying)):
        await copying.execute(
            "CREATE TABLE IF NOT EXISTS moving (seed int, row int, data text, PRIMARY KEY (seed, row)); TRUNCATE moving"
        )
        await copying.execute("CREATE TABLE IF NOT EXISTS counted (n int); TRUNCATE counted")
        wanted = lines(7)
        transaction = transacting.transaction()
        await transaction.start()
        await transacting.execute("INSERT INTO counted VALUES (1)")
        asked = asyncio.create_task(querying.fetchval("SELECT 7 FROM pg_sleep(0.5)"))
        writing = asyncio.create_task(copy_in(copying, wanted))
        await asyncio.sleep(0.05)
        for session in (querying, transacting, copying):
            breaking(session)
        await transacting.execute("INSERT INTO counted VALUES (2)")
        await transaction.commit()
        await writing
        reading = asyncio.create_task(copy_out(copying, 7))
        await asyncio.sleep(0.05)
        breaking(copying)
        assert await reading == wanted
        assert await asked == 7
        assert await querying.fetchval("SELECT 8") == 8
        assert fleet.site.admin.value("SELECT count(*) FROM counted") == 2
        assert [driver(session).quic.moves >= 1 for session in (querying, transacting, copying)] == [True] * 3


@workers
async def test_whatever_they_do_goes_on_from_another_address(
    start_fleet: StartFleet, workers: int, breaking: Callable[[asyncpg.Connection], None]
) -> None:
    fleet = await start_fleet(workers=workers)
    await queries(fleet)
    await copies(fleet, one_in=0)
    if workers == 1:
        await pings(fleet)
    await sockets(fleet, breaking)


async def test_a_path_that_carries_no_more_than_ipv6_asks_for(start_fleet: StartFleet) -> None:
    """Datagrams over 1232 octets, which are 1280 with IPv6's headers, vanish without a word: at first, and later."""
    fleet = await start_fleet(workers=1)
    size = 600_000
    async with behind(fleet, 1) as (network, (session,)):
        query = f"SELECT repeat('x', {size})"
        network.carries = 1232
        assert await session.fetchval(query) == "x" * size
        assert await session.fetchval("SELECT $1::text", "y" * size) == "y" * size
        assert driver(session).quic.search.size == 1200
        assert network.largest <= 1232
    async with behind(fleet, 1) as (network, (session,)):
        assert await session.fetchval(query) == "x" * size
        assert await session.fetchval("SELECT $1::text", "y" * size) == "y" * size
        assert driver(session).quic.search.size == network.largest == 1472
        asked = asyncio.create_task(session.fetchval(query))
        network.largest = 0
        await until(lambda: network.largest == 1472)
        network.carries = 1232
        assert await asked == "x" * size
        assert await session.fetchval("SELECT $1::text", "y" * size) == "y" * size
