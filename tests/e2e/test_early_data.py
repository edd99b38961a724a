"""Clients that come back to a gateway: who resumes, who may speak early, and what replays of that come to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.replaying import first_flight, recording_relay, replay
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import StreamManager
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start

KEY: Final = secrets.token_hex(32)
LOGIN: Final[dict[str, Any]] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}


@contextlib.asynccontextmanager
async def session(gateway: LocalGateway, tickets: Path, *, port: int = 0, **settings: Any) -> AsyncIterator[Any]:
    """A session of a process that has just begun, and has no more than the tickets of those before it."""
    async with StreamManager(
        f"127.0.0.1:{port or gateway.quic.port}",
        ca_file=str(gateway.site.certificates.ca_cert),
        tickets=tickets,
        **settings,
    ) as trunk:
        connection = await trunk.connect(**LOGIN)
        try:
            yield connection
        finally:
            await connection.close()


async def come_and_go(gateway: LocalGateway, tickets: Path, *, port: int = 0, **settings: Any) -> None:
    async with session(gateway, tickets, port=port, **settings) as connection:
        assert await connection.fetchval("SELECT 1") == 1
        # A gateway is told of a handshake's end a moment after its client.
        await until(tickets.exists)


def handshakes(gateway: LocalGateway) -> tuple[int, int, int]:
    """Full, resumed, and of these with early data that was taken."""
    counters = gateway.counters()
    full, resumed, early = (counters[f"quic_handshakes_{name}"] for name in ("full", "resumed", "early"))
    return full, resumed, early


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    return tmp_path / "tickets"


async def test_a_process_that_starts_again_logs_in_with_its_first_words(start: Start, tickets: Path) -> None:
    gateway = await start()
    for _ in range(3):
        await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (1, 2, 2)
    assert gateway.counters()["total_admitted"] == 3


@pytest.mark.parametrize(
    ("settings", "early_data", "expected"),
    [
        ({"quic_early_data": "off"}, "login", (1, 1, 0)),
        ({}, "off", (1, 1, 0)),
        ({"quic_retry": "always"}, "login", (1, 1, 1)),
        ({"auth_type": "trust"}, "login", (1, 1, 1)),
    ],
)
async def test_either_end_may_do_without(
    start: Start, tickets: Path, settings: dict[str, Any], early_data: Any, expected: tuple[int, ...]
) -> None:
    gateway = await start(**settings)
    for _ in range(2):
        await come_and_go(gateway, tickets, early_data=early_data)
    assert handshakes(gateway) == expected


async def test_a_trunk_that_has_lost_all_its_connections_comes_back_early(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk(connections=3, streams_per_connection=1)
    for expected in ((3, 0, 0), (3, 3, 3)):
        sessions = await asyncio.gather(*(trunk.connect(**LOGIN) for _ in range(3)))
        assert [await each.fetchval("SELECT 1") for each in sessions] == [1, 1, 1]
        await until(lambda: handshakes(gateway) == expected)  # noqa: B023
        store = trunk._config.tickets
        assert store is not None
        await until(lambda: sum(map(len, store._kept.values())) == 3)  # noqa: B023
        for driver in gateway.quic.drivers:
            driver.close()
        await until(lambda: all(each.is_closed() for each in sessions))  # noqa: B023
    connections = trunk.stats().connections
    assert (connections.opened, connections.resumed, connections.early, connections.refused_early) == (6, 3, 3, 0)
    assert connections.failed == 0


# Keys


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "ticket-keys"
    path.touch(mode=0o600)
    write_keys(path, KEY)
    return path


def write_keys(path: Path, *keys: str) -> None:
    path.write_text("# of the tests\n\n" + "\n".join(keys) + "\n")


async def test_gateways_with_the_same_file_know_each_others_clients(start: Start, tickets: Path, keys: Path) -> None:
    one, other = await start(quic_ticket_keys_file=keys), await start(quic_ticket_keys_file=keys)
    async with recording_relay(one.quic.port) as (between, _):
        await come_and_go(one, tickets, port=between.port)
        between.lead_to(other.quic.port)
        await come_and_go(one, tickets, port=between.port)
    assert handshakes(one) == (1, 0, 0)
    assert handshakes(other) == (0, 1, 1)


async def test_a_reload_replaces_keys_and_the_previous_ones_open(start: Start, tickets: Path, keys: Path) -> None:
    gateway = await start(quic_ticket_keys_file=keys)
    await come_and_go(gateway, tickets)
    old, new, third = (secrets.token_hex(32) for _ in range(3))
    write_keys(keys, new, KEY)
    await gateway.gateway.operations.reload()
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (1, 1, 1)
    write_keys(keys, third, old)
    await gateway.gateway.operations.reload()
    # Refused: a full handshake, and not an error.
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (2, 1, 1)
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (2, 2, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no key; make one: openssl rand -hex 32"),
        ("# nothing\n", "holds no key"),
        ("00112233", "line 1: 64 hexadecimal digits are needed"),
        (f"{'0' * 64}\nno key", "line 2: 64 hexadecimal digits are needed"),
        ("0" * 64 + "\n" + f"{'1' * 64}\n" * 8, "holds 9 keys, and 8 are the most"),
    ],
)
async def test_a_file_that_holds_no_keys_is_refused_and_shows_nothing_of_them(
    start: Start, tickets: Path, keys: Path, content: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(quic_ticket_keys_file=keys)
    await come_and_go(gateway, tickets)
    keys.write_text(content)  # noqa: ASYNC240
    with pytest.raises(ConfigError, match=words) as caught:
        await gateway.gateway.operations.reload()
    assert "quic_ticket_keys_file" in str(caught.value)
    assert "00112233" not in caplog.text
    caplog.clear()
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (1, 1, 1)


async def test_early_data_is_switched_by_a_reload(start: Start, tickets: Path) -> None:
    gateway = await start()
    await come_and_go(gateway, tickets)
    gateway.gateway.operations.set("quic_early_data", "off")
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (1, 1, 0)
    gateway.gateway.operations.set("quic_early_data", "login")
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (1, 2, 0), "a ticket from when it was off permits none"
    await come_and_go(gateway, tickets)
    assert handshakes(gateway) == (1, 3, 1)


# Replays


def done(gateway: LocalGateway) -> dict[str, int]:
    """What a gateway has done for clients. That sessions have begun and ended is nothing: streams are sessions."""
    counters = gateway.counters()
    leases = sum(pool.counters.leases for pool in gateway.gateway.pools)
    return {
        "leases": leases,
        "backends": len(gateway.backend_pids),
        **{name: value for name, value in counters.items() if name in ("total_admitted", "total_refused")},
        **{name: value for name, value in counters.items() if name.startswith("quic_handshakes_")},
    }


@pytest.mark.parametrize("auth_type", ["scram-sha-256", "trust"])
async def test_a_replay_has_no_effect_on_the_same_gateway_and_none_on_another(
    start: Start, tickets: Path, keys: Path, auth_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"quic_ticket_keys_file": keys, "auth_type": auth_type, "client_login_timeout": 1}
    gateway, other = await start(**settings), await start(**settings)
    # With a delay, or the handshake would be over before a session has anything to say.
    async with recording_relay(gateway.quic.port, delay=0.02) as (between, carried):
        await come_and_go(gateway, tickets, port=between.port)
        carried.clear()
        async with session(gateway, tickets, port=between.port) as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS replayed (id int)")
            assert handshakes(gateway) == (1, 1, 1)
            flight = first_flight(carried)
            await until(lambda: gateway.counts(leased=0))
            before = done(gateway)
            # While its connection is there, and all of it several times.
            async with replay(gateway.quic.port) as again:
                again.send(flight * 3)
                again.send(carried)
                await asyncio.sleep(0.1)
            assert done(gateway) == before
        # Also as a connection that has ended, and still knows its own packets.
        await until(lambda: gateway.counts(sessions=0) and not gateway.quic.listener.connection_ids)
        everything = list(carried)
    before, others = done(gateway), done(other)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for target in (gateway, other):
            # So that what is half open is over in time.
            limits = replace(target.quic.listener.door.limits, handshake_timeout=0.5)
            target.quic.listener.reload_limits(limits, "auto")
            async with replay(target.quic.port) as again:
                again.send(flight)
                await until(lambda: bool(again.answers))
                again.send(everything)
                await asyncio.sleep(0.1)
        await until(lambda: other.counts(sessions=0, quic_half_open=0) and gateway.counts(sessions=0, quic_half_open=0))
    assert done(gateway) == before
    assert other.counters()["total_opened"] == 1, "its early data was heard there"
    assert done(other) == others
    assert "login attempt" not in caplog.text
    assert not other.backend_pids
