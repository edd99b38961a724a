"""Resumption and early data through a fleet of real workers: any of them knows the clients of all."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.fleets import fleet_process
from helpers.replaying import first_flight, recording_relay, replay
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager
from pgtrunk_gateway.quic.connection_id import bucket_of

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.fleets import LocalFleet, StartFleet
    from helpers.site import Site

LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}


async def come_and_go(site: Site, port: int, tickets: Path, **settings: Any) -> Any:
    """A process that has no more than the tickets of those before it -> its connection, which is closed."""
    async with StreamManager(
        f"127.0.0.1:{port}", ca_file=str(site.certificates.ca_cert), connections=1, tickets=tickets, **settings
    ) as trunk:
        session = await trunk.connect(**LOGIN)
        assert await session.fetchval("SELECT 1") == 1
        driver = session._transport.get_extra_info("quic_connection")
        await until(lambda: driver.is_confirmed and tickets.exists())
        await session.close()
    return driver


async def done(fleet: LocalFleet) -> list[dict[str, int]]:
    """What the workers have done for clients."""
    names = ("total_admitted", "total_refused", "quic_handshakes_early", "quic_handshakes_resumed", "backends")
    counters = [await fleet.counters(index) for index in range(fleet.supervisor.count)]
    return [{name: each[name] for name in names} for each in counters]


async def totals(fleet: LocalFleet) -> tuple[int, int, int]:
    """Full handshakes, resumed ones, and of these with early data; of the workers that are there."""
    counters = [await fleet.counters(index) for index in range(fleet.supervisor.count)]
    full, resumed, early = (
        sum(each[f"quic_handshakes_{name}"] for each in counters) for name in ("full", "resumed", "early")
    )
    return full, resumed, early


async def test_any_worker_takes_early_data_with_the_tickets_of_others(start_fleet: StartFleet, tmp_path: Path) -> None:
    fleet = await start_fleet(workers=3)
    reached: set[int] = set()
    visits = 0
    while len(reached) < 3 or visits < 6:
        driver = await come_and_go(fleet.site, fleet.quic_port, tmp_path / "tickets")
        reached.add(bucket_of(driver.quic._peer_cid.cid) % 3)
        visits += 1
    assert await totals(fleet) == (1, visits - 1, visits - 1)
    # Whoever has seen it go by sends it again, while its connection is there and when it has ended.
    async with recording_relay(fleet.quic_port, delay=0.02) as (between, carried):
        await come_and_go(fleet.site, between.port, tmp_path / "tickets", server_name="localhost")
        carried.clear()
        await come_and_go(fleet.site, between.port, tmp_path / "tickets", server_name="localhost")
        flight = first_flight(carried)
    before = await done(fleet)
    for _ in range(2):
        async with replay(fleet.quic_port) as again:
            # While what is left of the connection is there, it is not answered.
            for _ in range(60):
                again.send(flight)
                again.send(carried)
                with contextlib.suppress(AssertionError):
                    await until(lambda: bool(again.answers), 0.5)
                    break
            assert again.answers
            await asyncio.sleep(0.05)
    assert await done(fleet) == before
    # And a worker that has begun later, in the place of another, knows them all.
    await fleet.kill(0)
    await fleet.until_served()
    reached.clear()
    while 0 not in reached:
        driver = await come_and_go(fleet.site, fleet.quic_port, tmp_path / "tickets")
        assert driver.took_early
        reached.add(bucket_of(driver.quic._peer_cid.cid) % 3)


@pytest.mark.long
async def test_a_gateway_that_starts_again_with_a_file_of_keys_knows_its_clients(site: Site, tmp_path: Path) -> None:
    keys, tickets = tmp_path / "keys", tmp_path / "tickets"
    keys.touch(mode=0o600)
    keys.write_text(secrets.token_hex(32))
    port, took = 0, []
    for _ in range(2):
        settings: dict[str, Any] = {"quic_listen_port": port} if port else {}
        with fleet_process(site, quic_ticket_keys_file=keys, **settings) as fleet:
            port = fleet.port("quic")
            took.append((await come_and_go(site, port, tickets)).took_early)
            fleet.stop()
    assert took == [False, True]
