"""Small messages that are sent twice, over a network that loses some: what both ends count, and what a reload changes.

What it gains, and the rules, are tested in virtual time (tests/quic). Here the network is far enough for copies to pay
whatever else the machine does, and its losses are few enough not to be taken for congestion.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.datagrams import relay
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager

if TYPE_CHECKING:
    import asyncpg

    from helpers.datagrams import Relay
    from helpers.gateways import LocalGateway, Start

LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
DELAY: Final = 0.025
"""Seconds, one way."""
ONE_IN: Final = 25
"""Datagrams of which one is lost."""
SESSIONS: Final = 4
PATIENCE: Final = 40.0
"""Seconds; no measure of anything. A guard that took a busy machine for a queue is silent again before."""

Row = dict[str, Any]


class Crowd:
    """The sessions of one trunk, which is one connection."""

    def __init__(self, trunk: StreamManager, sessions: list[asyncpg.Connection]) -> None:
        self.trunk = trunk
        self.sessions = sessions

    @property
    def counted(self) -> dict[str, int]:
        """What the client says of messages sent twice."""
        return asdict(self.trunk.stats().redundancy)


@contextlib.asynccontextmanager
async def crowd(gateway: LocalGateway, net: Relay, **settings: Any) -> AsyncIterator[Crowd]:
    ca_file = str(gateway.site.certificates.ca_cert)
    async with StreamManager(f"127.0.0.1:{net.port}", ca_file=ca_file, connections=1, **settings) as trunk:
        sessions = [await trunk.connect(**LOGIN) for _ in range(SESSIONS)]
        try:
            yield Crowd(trunk, sessions)
        finally:
            # Nor shall the goodbyes be lost, or the gateway would wait for its idle timeout.
            net.one_in = 0
            for session in sessions:
                session.terminate()


class Tally:
    answers = 0


@contextlib.asynccontextmanager
async def asking(*crowds: Crowd) -> AsyncIterator[Tally]:
    """All of them ask on and on, and each answer is right."""
    tally, over = Tally(), asyncio.Event()

    async def ask(session: asyncpg.Connection) -> None:
        number = 0
        while not over.is_set():
            number += 1
            assert await session.fetchval("SELECT $1::int", number) == number
            tally.answers += 1

    async with asyncio.TaskGroup() as group:
        for each in crowds:
            for session in each.sessions:
                group.create_task(ask(session))
        try:
            yield tally
        finally:
            over.set()


class Console:
    """SHOW CONNECTIONS, and which row is whose."""

    def __init__(self, session: asyncpg.Connection) -> None:
        self._session = session

    async def rows(self) -> dict[int, Row]:
        """By the connection's number."""
        return {row["id"]: dict(row) for row in await self._session.fetch("SHOW CONNECTIONS")}

    async def newest(self) -> int:
        return max(await self.rows())

    async def until(self, condition: Callable[[dict[int, Row]], bool]) -> dict[int, Row]:
        """The rows as soon as the condition holds of them."""
        async with asyncio.timeout(PATIENCE):
            while not condition(rows := await self.rows()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return rows


async def console_of(gateway: LocalGateway) -> Console:
    return Console(await gateway.connect("unix", user="pgbouncer", password=None, database="gateway"))


def adds_up(eligible: int, became: Iterable[int]) -> bool:
    """Each frame that could be copied was, or was not for one reason, or is acknowledged or waits."""
    return eligible >= sum(became)


@pytest.mark.parametrize("redundancy", ["auto", "off"])
async def test_both_ends_count_what_they_send_twice(start: Start, redundancy: str) -> None:
    gateway = await start()
    console = await console_of(gateway)
    async with relay(gateway.quic.port, delay=DELAY) as net, crowd(gateway, net, redundancy=redundancy) as clients:
        mine = await console.newest()
        async with asking(clients) as tally:
            await until(lambda: tally.answers >= 100)
            row = (await console.rows())[mine]
            assert (row["losses"], row["copies_eligible"], row["copies"]) == (0, 0, 0)
            counted = clients.counted
            assert (counted["losses"], counted["eligible"], counted["copies"]) == (0, 0, 0)

            net.one_in = ONE_IN
            rows = await console.until(lambda rows: bool(rows[mine]["copies"] and rows[mine]["copies_spurious"]))
            await until(lambda: clients.counted["losses"], PATIENCE)
            if redundancy == "auto":
                await until(lambda: clients.counted["copies"] and clients.counted["spurious"], PATIENCE)
        row, counted = rows[mine], clients.counted
        assert row["losses"] > 0
        assert row["streams"] == SESSIONS
        assert adds_up(row["copies_eligible"], (row["copies"], row["copies_off_guard"], row["copies_off_window"]))
        assert adds_up(
            counted["eligible"], (counted["copies"], counted["suppressed_guard"], counted["suppressed_window"])
        )
        if redundancy == "off":
            assert (counted["eligible"], counted["copies"]) == (0, 0)


async def test_a_reload_counts_for_connections_that_begin_after_it(start: Start) -> None:
    """All of them come from one address, so that they share what is known of its losses; but not the setting."""
    gateway = await start(quic_redundancy="auto")
    console = await console_of(gateway)

    async def reload(value: str) -> None:
        gateway.site.write_ini(gateway.place, quic_redundancy=value)
        await gateway.gateway.operations.reload()
        assert gateway.gateway.config.quic_redundancy == value

    async with relay(gateway.quic.port, delay=DELAY) as net, contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(crowd(gateway, net))
        before = await console.newest()
        await reload("off")
        second = await stack.enter_async_context(crowd(gateway, net))
        without = await console.newest()
        net.one_in = ONE_IN
        async with asking(first, second):
            rows = await console.until(lambda rows: bool(rows[before]["copies"] and rows[without]["losses"]))
            # What a client sends twice is its own affair.
            await until(lambda: second.counted["copies"], PATIENCE)
        assert (rows[without]["copies_eligible"], rows[without]["copies"]) == (0, 0)

        net.one_in = 0
        await reload("auto")
        third = await stack.enter_async_context(crowd(gateway, net))
        after = await console.newest()
        net.one_in = ONE_IN
        async with asking(second, third):
            lost = rows[without]["losses"]
            rows = await console.until(lambda rows: bool(rows[after]["copies"] and rows[without]["losses"] > lost))
        assert (rows[without]["copies_eligible"], rows[without]["copies"]) == (0, 0)
