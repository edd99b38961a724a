"""A login whose first message comes with the StartupMessage, by every front; and what a trunk makes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.every_front import EVERY_FRONT, by_front, settings_for
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk.wire import backend
from pgtrunk.wire import frontend as client
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.auth import ClientExchange

if TYPE_CHECKING:
    from helpers.gateways import Start
    from helpers.site import Site

STARTUP = StartupMessage(parameters={"user": USER, "database": DATABASE}).encode()


@pytest.mark.parametrize("front", EVERY_FRONT)
async def test_the_first_message_may_come_with_the_startup_packet(site: Site, start: Start, front: str) -> None:
    gateway = await start(**settings_for(front, site))
    async with by_front(gateway, front) as wire:
        session = await wire.open()
        session.reads_messages = True
        exchange = ClientExchange(nonce=b"n" * 18)
        session.send(STARTUP + client.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
        offer, answer = await session.take(2)
        challenge = backend.parse_authentication(answer.body)
        assert (backend.parse_authentication(offer.body).code, challenge.code) == (10, 11)
        keys = exchange.challenge(challenge.data, PASSWORD).run()
        session.send(client.sasl_response(exchange.final(keys)) + client.query(b"SELECT 7"))
        kinds = "".join(message.kind for message in await session.until_ready(2))
        assert (kinds[:2], kinds[-5:]) == ("RR", "ZTDCZ")


@pytest.mark.parametrize("transport", ["quic", "tcp"])
async def test_a_trunk_says_it_ahead_from_the_second_login_on(site: Site, start: Start, transport: str) -> None:
    front = "trunk-tcp" if transport == "tcp" else "quic"
    gateway = await start(**settings_for(front, site))
    port = gateway.port if transport == "tcp" else None
    trunk = await gateway.trunk(transport=transport, port=port)
    login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
    connections = [await trunk.connect(**login)]
    saved = trunk.stats().sessions.round_trips_saved
    connections += [await trunk.connect(**login) for _ in range(2)]
    by_transport = 0 if transport == "tcp" else 3
    assert trunk.stats().sessions.round_trips_saved == saved + 2 * (1 + by_transport)
    for connection in connections:
        assert await connection.fetchval("SELECT 7") == 7
        await connection.close()


async def test_another_auth_type_after_a_reload_is_no_error(site: Site, start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk()
    login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}
    for auth_type in ("scram-sha-256", "plain", "scram-sha-256", "trust", "md5", "scram-sha-256"):
        gateway.gateway.operations.set("auth_type", auth_type)
        for _ in range(2):
            connection = await trunk.connect(**login)
            assert await connection.fetchval("SELECT 7") == 7
            await connection.close()
    assert gateway.gateway.context.limiter.allow("127.0.0.1", 0.0) == 0.0


async def test_a_wrong_password_is_refused_as_ever(site: Site, start: Start) -> None:
    gateway = await start(login_failure_limit=0)
    trunk = await gateway.trunk()
    login: dict[str, Any] = {"user": USER, "database": DATABASE, "timeout": 20}
    await (await trunk.connect(password=PASSWORD, **login)).close()
    for _ in range(2):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await trunk.connect(password="wrong", **login)
    assert gateway.counters()["total_refused"] == 2
    await (await trunk.connect(password=PASSWORD, **login)).close()
