"""Where a session is, and where its cancel lands: every front, every place, both protocols, running and waiting.

Two fleets of two workers each, all in this loop, so that it is the test that says which worker a connection comes to.
The first fleet knows the second as a peer, whose connections come to its first worker. Each cancel comes to worker 0 of
the first fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from helpers.cancel_server import cancel_server
from helpers.every_front import by_front
from helpers.gateways import POOLED
from helpers.raw_session import RawSession
from helpers.recording import CANCEL, SSL, recorder
from helpers.siblings import siblings
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, CancelRequest
from pgtrunk_gateway.cancel.keys import forwarded, mint
from pgtrunk_gateway.cancel.outcome import Outcome

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

SLEEP: Final = frontend.query(b"SELECT pg_sleep(60)")
SELECT: Final = frontend.query(b"SELECT 1")
CANCELLED: Final = "57014"
PROTOCOLS: Final = pytest.mark.parametrize("protocol", [PROTOCOL_3_0, PROTOCOL_3_2], ids=["3.0", "3.2"])


class World:
    """The four gateways, by the place that a session of theirs has for a cancel that comes to the first one."""

    def __init__(self, gateways: dict[str, LocalGateway]) -> None:
        self.gateways = gateways

    @property
    def door(self) -> LocalGateway:
        return self.gateways["same worker"]

    def outcomes(self) -> dict[str, int]:
        """Of all requests that have come to the first one."""
        return {outcome.name.lower(): count for outcome, count in self.door.gateway.cancels.outcomes.items()}


@contextlib.asynccontextmanager
async def world(start: Start, entry: str = "long_keys=1", **settings: Any) -> AsyncIterator[World]:
    settings = {"default_pool_size": 1, "auth_type": "trust", **settings}
    others = [await start(**settings, peer_id=2) for _ in range(2)]
    peers = f"[peers]\n1 = host=127.0.0.1 port=1\n2 = host=127.0.0.1 port={others[0].port} {entry}"
    ours = [await start(**settings, peer_id=1, sections=peers) for _ in range(2)]
    gateways = dict(zip(("same worker", "sibling", "other gateway", "its sibling"), (*ours, *others), strict=True))
    async with (
        siblings(*(gateway.gateway.cancels for gateway in ours)),
        siblings(*(gateway.gateway.cancels for gateway in others)),
    ):
        yield World(gateways)
        for gateway in gateways.values():
            await until(lambda gateway=gateway: gateway.counts(cancels=0))  # type: ignore[misc]


async def log_in(gateway: LocalGateway, way: Way, protocol: int) -> RawSession:
    session = await RawSession.open(gateway, way)
    session.startup({}, protocol=protocol)
    await session.until_ready()
    assert session.key is not None
    return session


async def send(gateway: LocalGateway, way: Way, request: bytes) -> None:
    """Sends a cancel request, and returns when the gateway says by closing that it has had its effect."""
    connection = await RawSession.open(gateway, way)
    connection.send(request)
    assert await connection.until_lost() == []


async def errors(session: RawSession) -> list[str]:
    """The SQLSTATEs of the errors up to the next ReadyForQuery."""
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


@PROTOCOLS
@pytest.mark.parametrize("by", POOLED)
@pytest.mark.parametrize("of", POOLED)
async def test_a_cancel_finds_its_session(start: Start, of: Way, by: Way, protocol: int) -> None:
    """``of``: the session's front; ``by``: the cancel's."""
    async with world(start) as here:
        for place, gateway in here.gateways.items():
            running, waiting, other = [await log_in(gateway, of, protocol) for _ in range(3)]
            assert running.key is not None
            assert len(running.key.secret) == (4 if protocol == PROTOCOL_3_0 else 32)
            running.send(SLEEP)
            await until(lambda: here.door.site.admin.running("pg_sleep"))
            for session in (waiting, other):
                session.send(SELECT)
            await until(lambda gateway=gateway: gateway.counts(waiting=2))  # type: ignore[misc]
            await send(here.door, by, waiting.cancel_request())
            # It had its effect before its connection was closed, on what it was meant for.
            assert gateway.counts(waiting=1), place
            assert await errors(waiting) == [CANCELLED], place
            await send(here.door, by, running.cancel_request())
            assert await errors(running) == [CANCELLED], place
            assert await errors(other) == [], place
            for session in (running, waiting, other):
                assert await session.ask(SELECT) == "TDCZI", place
                session.close()
        assert here.outcomes() == {"refused": 2, "carried": 2, "forwarded": 4}


@PROTOCOLS
async def test_one_that_comes_too_late_is_nobodys_guess(start: Start, protocol: int) -> None:
    async with world(start, login_failure_limit=1) as here:
        for gateway in here.gateways.values():
            session = await log_in(gateway, "tcp", protocol)
            await send(here.door, "tcp", session.cancel_request())
            session.close()
            await until(lambda gateway=gateway: gateway.counts(cancel_keys=0))  # type: ignore[misc]
            await send(here.door, "tcp", session.cancel_request())
        assert here.outcomes() == {"idle": 2, "ended": 2, "forwarded": 4}
        assert [len(gateway.gateway.cancels.limiter) for gateway in here.gateways.values()] == [0] * 4


@PROTOCOLS
async def test_through_a_sidecar(start: Start, protocol: int) -> None:
    """One that has not carried the session, as after its restart: the request goes by whatever connection it has."""
    async with world(start) as here, by_front(here.door, "sidecar") as sidecar:
        for place, gateway in here.gateways.items():
            session = await log_in(gateway, "quic", protocol)
            session.send(SLEEP)
            await until(lambda: here.door.site.admin.running("pg_sleep"))
            connection = await sidecar.open()
            connection.send(session.cancel_request())
            await connection.until_lost()
            assert await errors(session) == [CANCELLED], place
            session.close()
        assert here.outcomes() == {"carried": 2, "forwarded": 2}


@PROTOCOLS
async def test_a_wrong_key_of_anybody_hits_nobody(start: Start, protocol: int) -> None:
    async with world(start, login_failure_limit=0) as here:
        sessions = [await log_in(gateway, "tcp", protocol) for gateway in here.gateways.values()]
        for session in sessions:
            session.send(SLEEP)
        await until(lambda: len(here.door.site.admin.running("pg_sleep")) == 4)
        for session in sessions:
            assert session.key is not None
            secret = session.key.secret
            await send(here.door, "tcp", session.cancel_request(bytes([secret[0] ^ 1]) + secret[1:]))
            await send(here.door, "tcp", session.cancel_request(secret[:-1]))
        # A secret of no gateway's length is forwarded to nobody.
        assert here.outcomes() == {"unknown": 6, "forwarded": 2}
        assert not any(session.has_answer for session in sessions)
        for session in sessions:
            await send(here.door, "tcp", session.cancel_request())
            assert await errors(session) == [CANCELLED]


@PROTOCOLS
async def test_one_without_hops_stays_where_it_is(start: Start, protocol: int) -> None:
    async with world(start) as here:
        for place, gateway in here.gateways.items():
            session = await log_in(gateway, "tcp", protocol)
            assert session.key is not None
            secret = session.key.secret
            for _ in range(3):
                secret = forwarded(secret)
            session.send(SLEEP)
            await until(lambda: here.door.site.admin.running("pg_sleep"))
            await send(here.door, "tcp", session.cancel_request(secret))
            if place in ("other gateway", "its sibling"):
                assert not session.has_answer, place
                await send(here.door, "tcp", session.cancel_request())
            assert await errors(session) == [CANCELLED], place
            session.close()
        assert here.outcomes() == {"carried": 2, "unknown": 2, "forwarded": 2}


async def test_where_a_peer_may_be_a_pgbouncer_keys_are_short(start: Start) -> None:
    async with world(start, entry="") as here:
        session = await log_in(here.door, "tcp", PROTOCOL_3_2)
        assert session.key is not None
        assert len(session.key.secret) == 4


async def test_peers_by_unix_socket(start: Start) -> None:
    other = await start(auth_type="trust", peer_id=2)
    peers = f"[peers]\n2 = host={other.place} port={other.port}"
    door = await start(auth_type="trust", peer_id=1, sections=peers)
    session = await log_in(other, "unix", PROTOCOL_3_0)
    session.send(SLEEP)
    await until(lambda: other.site.admin.running("pg_sleep"))
    await send(door, "unix", session.cancel_request())
    assert await errors(session) == [CANCELLED]
    assert door.gateway.cancels.outcomes == {Outcome.FORWARDED: 1}


@pytest.mark.parametrize("mode", ["", "prefer", "verify-full"])
async def test_peers_in_tls(start: Start, site: Site, mode: str) -> None:
    """PgBouncer's way is in clear, even where both sides have TLS; an entry may say otherwise."""
    certificates = site.certificates
    other = await start(
        auth_type="trust",
        peer_id=2,
        client_tls_sslmode="allow",
        client_tls_cert_file=certificates.server_cert,
        client_tls_key_file=certificates.server_key,
    )
    async with recorder("127.0.0.1", other.port) as between:
        entry = f"2 = host=127.0.0.1 port={between.port}"
        if mode:
            entry += f" server_tls_sslmode={mode}"
        if mode == "verify-full":
            entry += f" server_tls_ca_file={certificates.ca_cert}"
        door = await start(auth_type="trust", peer_id=1, sections=f"[peers]\n{entry}")
        session = await log_in(other, "tcp", PROTOCOL_3_0)
        assert session.key is not None
        session.send(SLEEP)
        await until(lambda: other.site.admin.running("pg_sleep"))
        await send(door, "tcp", session.cancel_request())
        assert await errors(session) == [CANCELLED]
        assert between.begun == [SSL if mode else CANCEL]
        assert (session.key.secret[:3] in between.sent) is not bool(mode)
    assert door.gateway.cancels.outcomes == {Outcome.FORWARDED: 1}


async def test_a_reload_brings_peers_and_takes_them(start: Start) -> None:
    other = await start(auth_type="trust", peer_id=2)
    door = await start(auth_type="trust", peer_id=1)
    session = await log_in(other, "tcp", PROTOCOL_3_0)
    entry = f"[peers]\n2 = host=127.0.0.1 port={other.port} pool_size=3"
    for sections, told in (("", []), (entry, [CANCELLED]), ("", [])):
        door.site.write_ini(door.place, auth_type="trust", peer_id=1, sections=sections)
        await door.gateway.operations.reload()
        session.send(frontend.query(b"SELECT pg_sleep(%d)" % (60 if told else 0)))
        if told:
            await until(lambda: other.site.admin.running("pg_sleep"))
        await send(door, "tcp", session.cancel_request())
        assert await errors(session) == told
    assert door.gateway.cancels.outcomes == {Outcome.FORWARDED: 1, Outcome.UNKNOWN: 2}


async def test_the_console_knows_peers_and_what_is_on_its_way(start: Start) -> None:
    """What a peer has been told of, and has not hung up on, and what waits for that, at pool_size = 1."""
    async with cancel_server() as peer:
        peers = f"[peers]\n7 = host=127.0.0.1 port={peer.port} pool_size=1\n2 = host=/run/two"
        door = await start(auth_type="trust", peer_id=1, sections=peers)
        assert await show(door, "PEERS") == [(2, "/run/two", 6432, 20), (7, "127.0.0.1", peer.port, 1)]
        assert await show(door, "PEER_POOLS") == []
        key = mint(7, bytes(8))
        connections = [await RawSession.open(door, "tcp") for _ in range(3)]
        for connection in connections:
            connection.send(CancelRequest(key.pid, key.secret).encode())
        await until(lambda: door.counts(cancels=3) and peer.requests)
        assert await show(door, "PEER_POOLS") == [(7, 1, 2, 1, 0)]
        assert ("peer_pools", 1) in await show(door, "LISTS")
        peer.may_close.set()
        for connection in connections:
            await connection.until_lost()
        assert await show(door, "PEER_POOLS") == [(7, 0, 0, 0, 0)]
    assert door.gateway.cancels.outcomes == {Outcome.FORWARDED: 3}


async def show(gateway: LocalGateway, what: str) -> list[tuple[Any, ...]]:
    def ask() -> list[tuple[Any, ...]]:
        login = gateway.conninfo("unix", user="pgtrunk", password=None, dbname="pgbouncer")
        with psycopg.connect(**login, autocommit=True) as connection:
            return connection.execute(f"SHOW {what}".encode()).fetchall()

    return await asyncio.to_thread(ask)
