"""Protocol 3.0 and 3.2, on either side of the gateway, and the keys that come with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.protocol_server import SLEEP, protocol_server
from helpers.raw_session import RawSession
from helpers.sidecars import sidecar_process
from helpers.site import DATABASE
from helpers.waiting import until
from pgtrunk.wire import backend as server_says
from pgtrunk.wire import frontend
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, CancelRequest
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start, Way

OLD, NEW = PROTOCOL_3_0, PROTOCOL_3_2
VERSIONS = pytest.mark.parametrize("version", ["3.0", "3.2"])
PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["3.0", "3.2"])
CANCELLED: Final = "57014"
SELECT: Final = frontend.query(b"SELECT 1")


async def log_in(gateway: LocalGateway, way: Way, protocol: int, **parameters: str) -> RawSession:
    session = await RawSession.open(gateway, way)
    session.startup(parameters, protocol=protocol)
    await session.until_ready()
    return session


async def cancel(gateway: LocalGateway, way: Way, request: bytes) -> None:
    """Sends a cancel request, and returns when the gateway says by closing that it has acted on it."""
    connection = await RawSession.open(gateway, way)
    connection.send(request)
    assert await connection.until_lost() == []


async def errors(session: RawSession) -> list[str]:
    """The SQLSTATEs of the errors up to the next ReadyForQuery."""
    return [message.error.sqlstate for message in await session.until_ready() if message.kind == "E"]


# -- clients -----------------------------------------------------------------------------------------------------------


async def psql(conninfo: dict[str, Any], *arguments: str) -> asyncio.subprocess.Process:
    """libpq 18's, which is asked for one version and no other."""
    where = " ".join(f"{name}={value}" for name, value in conninfo.items() if name != "password")
    return await asyncio.create_subprocess_exec(
        EmbeddedPostgres.binary("psql"),
        "-XAt",
        *arguments,
        where,
        env=os.environ | {"PGPASSWORD": conninfo["password"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@VERSIONS
@pytest.mark.parametrize("through", ["tcp", "unix", "sidecar"])
async def test_psql_and_its_control_c(start: Start, through: str, version: str) -> None:
    gateway = await start()
    async with contextlib.AsyncExitStack() as stack:
        if through == "sidecar":
            sidecar = await stack.enter_async_context(sidecar_process(gateway.site, gateway.quic.port))
            conninfo = sidecar.conninfo()
        else:
            conninfo = gateway.conninfo("unix" if through == "unix" else "tcp")
        conninfo |= {"min_protocol_version": version, "max_protocol_version": version}
        asking = await psql(conninfo, "-c", r"\conninfo", "-c", "SELECT 6 * 7")
        async with asyncio.timeout(20):
            told, said = await asking.communicate()
        assert (asking.returncode, said) == (0, b"")
        assert f"Protocol Version|{version}\n".encode() in told
        assert told.endswith(b"42\n")
        sleeping = await psql(conninfo, "-c", "SELECT pg_sleep(60)")
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        sleeping.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            _, said = await sleeping.communicate()
        assert b"canceling statement due to user request" in said
        assert sleeping.returncode == 1


@PROTOCOLS
async def test_a_cancel_with_each_kind_of_key(start: Start, pooled: Way, protocol: int) -> None:
    gateway = await start(auth_type="trust")
    session = await log_in(gateway, pooled, protocol)
    assert session.key is not None
    secret = session.key.secret
    assert len(secret) == (32 if protocol == NEW else 4)
    session.send(frontend.query(b"SELECT pg_sleep(60)"))
    await until(lambda: gateway.site.admin.running("pg_sleep"))
    for wrong in (bytes(len(secret)), secret[:-1], secret[:-1] + bytes([secret[-1] ^ 0x80]), secret[:4] + bytes(28)):
        await cancel(gateway, pooled, session.cancel_request(wrong))
    assert gateway.site.admin.running("pg_sleep")
    await cancel(gateway, pooled, session.cancel_request())
    assert await errors(session) == [CANCELLED]
    assert await session.ask(SELECT) == "TDCZI"


async def test_where_a_peer_may_be_a_pgbouncer_keys_are_short(start: Start) -> None:
    """It drops requests with longer ones."""
    gateway = await start(auth_type="trust", peer_id=1, sections="[peers]\n2 = host=127.0.0.1 port=1")
    session = await log_in(gateway, "tcp", NEW)
    assert session.key is not None
    assert len(session.key.secret) == 4


async def test_the_console_has_keys_too(start: Start) -> None:
    gateway = await start(auth_type="trust", admin_users="app")
    for protocol, size in ((OLD, 4), (NEW, 32)):
        session = await log_in(gateway, "tcp", protocol, database="pgbouncer")
        assert session.key is not None
        assert len(session.key.secret) == size
        session.send(frontend.TERMINATE_MESSAGE)
        await session.until_lost()


# -- servers -----------------------------------------------------------------------------------------------------------


@PROTOCOLS
async def test_what_a_client_speaks_is_not_what_the_server_is_asked_for(start: Start, protocol: int) -> None:
    gateway = await start(auth_type="trust")
    session = await log_in(gateway, "tcp", protocol)
    assert await session.ask(SELECT) == "TDCZI"
    backends = [backend for pool in gateway.gateway.pools for backend in pool.backends.values()]
    # Postgres 18's secrets.
    assert [len(backend.key.secret) for backend in backends if backend.key is not None] == [32]


@pytest.mark.parametrize("turns_down", [b"", server_says.error("08P01", "what?", severity="FATAL")])
async def test_all_pools_of_a_server_know_that_it_does_not_speak_3_2(start: Start, turns_down: bytes) -> None:
    async with protocol_server(newest=OLD, turns_down=turns_down) as server:
        gateway = await start(auth_type="trust", databases={"one": server.target, "two": server.target})
        for database in ("one", "two"):
            session = await log_in(gateway, "tcp", NEW, database=database)
            assert await session.ask(SELECT) == "CZI"
        assert server.asked == [NEW, OLD, OLD]
    await until(lambda: not gateway.backend_pids)


async def test_servers_whose_pids_collide(start: Start, pooled: Way) -> None:
    secrets = {"one": b"one!", "two": bytes(range(256))}
    async with (
        protocol_server(secret=secrets["one"], newest=OLD) as one,
        protocol_server(secret=secrets["two"]) as two,
    ):
        servers = {"one": one, "two": two}
        gateway = await start(auth_type="trust", databases={name: each.target for name, each in servers.items()})
        sessions = {name: await log_in(gateway, pooled, NEW, database=name) for name in servers}
        for session in sessions.values():
            session.send(SLEEP)
        await until(lambda: one.sleeping and two.sleeping)
        assert gateway.backend_pids == {7}
        for name in ("two", "one"):
            assert not sessions[name].has_answer
            assert servers[name].cancels == []
            await cancel(gateway, pooled, sessions[name].cancel_request())
            assert await errors(sessions[name]) == [CANCELLED]
            assert servers[name].cancels == [CancelRequest(7, secrets[name])]
    await until(lambda: not gateway.backend_pids)


async def test_a_server_that_gives_no_key(start: Start, pooled: Way) -> None:
    """Its queries cannot be cancelled; all else goes on, and nobody waits for what cannot come."""
    async with protocol_server(secret=None) as server:
        gateway = await start(auth_type="trust", databases={DATABASE: server.target})
        session = await log_in(gateway, pooled, NEW)
        session.send(SLEEP)
        await until(lambda: server.sleeping)
        await cancel(gateway, pooled, session.cancel_request())
        assert not session.has_answer
        server.wake()
        assert await errors(session) == []
        assert await session.ask(SELECT) == "CZI"
    await until(lambda: not gateway.backend_pids)
