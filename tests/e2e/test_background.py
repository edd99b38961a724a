"""`BackgroundTrunk` between psycopg, in threads of the test's own process, and a real gateway."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until, until_blocking
from pgtrunk import BackgroundTrunk

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start


def trunk(gateway: LocalGateway, **settings: Any) -> BackgroundTrunk:
    return BackgroundTrunk(f"127.0.0.1:{gateway.quic.port}", ca_file=str(gateway.site.certificates.ca_cert), **settings)


def dsn(trunk: BackgroundTrunk) -> str:
    return trunk.dsn(user=USER, password=PASSWORD, database=DATABASE, connect_timeout="20")


async def test_threads_share_a_trunk(start: Start) -> None:
    gateway = await start(default_pool_size=4)

    def use(trunk: BackgroundTrunk, answers: list[Any]) -> None:
        with psycopg.connect(dsn(trunk)) as connection:
            for n in range(20):
                answers.append(connection.execute("SELECT %s::int", (n,)).fetchone())
                connection.commit()

    def run() -> None:
        with trunk(gateway, connections=1) as opened:
            answers: list[Any] = []
            threads = [threading.Thread(target=use, args=(opened, answers)) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(40)
            assert sorted(answers) == sorted((n,) for n in range(20) for _ in range(10))
            stats = opened.stats()
            assert (stats.streams_opened, stats.connections_opened) == (10, 1)

    await asyncio.to_thread(run)
    await until(lambda: gateway.counts(sessions=0, leased=0))


async def test_a_cancel_at_the_cap(start: Start) -> None:
    gateway = await start()

    def run() -> None:
        with (
            trunk(gateway, connections=1, streams_per_connection=1) as opened,
            psycopg.connect(dsn(opened), autocommit=True) as connection,
        ):

            def cancel() -> None:
                until_blocking(lambda: gateway.site.admin.running("pg_sleep"))
                connection.cancel_safe(timeout=20)

            canceller = threading.Thread(target=cancel)
            canceller.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                connection.execute("SELECT pg_sleep(60)")
            canceller.join(40)
            assert connection.execute("SELECT 1").fetchone() == (1,)

    await asyncio.to_thread(run)


async def test_closing_ends_a_transaction_that_is_open(start: Start) -> None:
    gateway = await start()

    def run() -> None:
        with trunk(gateway) as opened:
            connection = psycopg.connect(dsn(opened))
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="the sidecar is shutting down"):
            connection.execute("SELECT 1")

    await asyncio.to_thread(run)
    await until(lambda: gateway.counts(sessions=0, leased=0))
