"""Logins, and what a startup packet may ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk.wire import frontend
from pgtrunk.wire.backend import parse_negotiate_protocol
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, GSSENCRequest, SSLRequest, StartupMessage

if TYPE_CHECKING:
    from helpers.gateways import Start, Way

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"password": "wrong"}, "28P01", "SASL authentication failed"),
    ({"user": "nobody"}, "28P01", "SASL authentication failed"),
    ({"user": "postgres"}, "28P01", "SASL authentication failed"),
    ({"database": "nowhere"}, "3D000", "no such database: nowhere"),
    ({"server_settings": {"seed": "1"}}, "0A000", 'parameter "seed" cannot follow a session from backend to backend'),
]


@pytest.mark.parametrize(("options", "sqlstate", "words"), REFUSED)
async def test_refused_logins_say_why(
    start: Start, pooled: Way, options: dict[str, Any], sqlstate: str, words: str
) -> None:
    gateway = await start()
    with pytest.raises(asyncpg.PostgresError) as caught:
        await gateway.connect(pooled, **options)
    assert (caught.value.sqlstate, caught.value.args[0]) == (sqlstate, words)
    assert await (await gateway.connect(pooled)).fetchval("SELECT current_user") == USER
    assert gateway.counters()["total_refused"] == 1


async def test_parameters_that_are_ignored(start: Start, pooled: Way) -> None:
    ignoring = await start(ignore_startup_parameters="work_mem, options")
    session = await ignoring.connect(pooled, server_settings={"work_mem": "1MB", "options": "-c work_mem=2MB"})
    assert await session.fetchval("SHOW work_mem") == "4MB"


async def test_a_database_that_postgres_does_not_have(start: Start, pooled: Way) -> None:
    gateway = await start(databases={"*": f"host=127.0.0.1 port={(await start()).site.postgres.port}"})
    for _ in range(2):
        with pytest.raises(asyncpg.InvalidCatalogNameError, match='database "nowhere" does not exist'):
            await gateway.connect(pooled, database="nowhere")
    assert await (await gateway.connect(pooled)).fetchval("SELECT current_database()") == DATABASE


async def test_a_wrong_password_of_the_gateways_own(start: Start, pooled: Way) -> None:
    site = (await start()).site
    gateway = await start(databases={DATABASE: site.target(f"user={USER} password=wrong")})
    for _ in range(2):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await gateway.connect(pooled)
        assert caught.value.sqlstate == "28P01"
        assert PASSWORD not in str(caught.value)


async def test_postgres_that_is_not_there(start: Start, pooled: Way) -> None:
    """It may be about to start, so a client waits for it; as long as for a backend, or for its login."""
    gateway = await start(databases={DATABASE: "host=127.0.0.1 port=1"}, query_wait_timeout=0.3)
    with pytest.raises(asyncpg.PostgresError, match=r"query_wait_timeout \(server down\)") as caught:
        await gateway.connect(pooled)
    assert caught.value.sqlstate == "08001"
    assert "query_wait_timeout = 0.3 s. The last connection failed: cannot connect to the server at 127.0.0.1:1" in str(
        caught.value.detail
    )


async def test_psql_users_get_the_same_words(start: Start) -> None:
    gateway = await start()
    for change, words in (
        ({"password": "wrong"}, "FATAL:  SASL authentication failed"),
        ({"dbname": "nowhere"}, "FATAL:  no such database: nowhere"),
        ({"options": "-c seed=1"}, 'FATAL:  parameter "seed" cannot follow a session'),
        ({"replication": "database"}, "FATAL:  number of requested standby connections exceeds"),
    ):
        with pytest.raises(psycopg.OperationalError, match=words):
            await psycopg.AsyncConnection.connect(**gateway.conninfo("unix", **change))


async def test_many_failures_have_to_wait(start: Start) -> None:
    gateway = await start(login_failure_limit=3)
    for _ in range(3):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await gateway.connect("tcp", password="wrong")
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="too many failed logins"):
        await gateway.connect("tcp")
    # The unix socket's clients have no address, and are not counted.
    assert await (await gateway.connect("unix")).fetchval("SELECT 1") == 1


async def test_logins_at_once(start: Start, pooled: Way) -> None:
    gateway = await start(max_client_conn=200)
    sessions = await asyncio.gather(*(gateway.connect(pooled) for _ in range(100)))
    assert await asyncio.gather(*(session.fetchval("SELECT 1") for session in sessions)) == [1] * 100
    assert gateway.counters()["sessions"] == 100


async def test_max_client_conn(start: Start, pooled: Way) -> None:
    gateway = await start(max_client_conn=3)
    sessions = [await gateway.connect(pooled) for _ in range(3)]
    with pytest.raises(asyncpg.TooManyConnectionsError) as caught:
        await gateway.connect(pooled)
    assert caught.value.args[0] == "no more connections allowed (max_client_conn)"
    assert caught.value.detail == "max_client_conn = 3."
    await sessions.pop().close()
    await until(lambda: gateway.counts(admitted=2))
    # A login that fails does not count, nor does one that is cancelled on the way.
    with pytest.raises(asyncpg.InvalidPasswordError):
        await gateway.connect(pooled, password="wrong")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await gateway.connect(pooled, database="nowhere")
    for _ in range(10):
        login = asyncio.create_task(gateway.connect(pooled))
        await asyncio.sleep(0)
        login.cancel()
        await asyncio.wait([login])
    await until(lambda: gateway.counts(admitted=2))
    assert await (await gateway.connect(pooled)).fetchval("SELECT 1") == 1


# -- octet by octet


async def test_encryption_is_refused_and_the_login_goes_on(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    session = await RawSession.open(gateway, pooled)
    session.reads_messages = False
    for request in (SSLRequest(), GSSENCRequest()):
        session.send(request.encode())
        assert await session.until_octets(1) == b"N"
    session.reads_messages = True
    session.startup({})
    assert session.kinds(await session.until_ready()) == "RKZI"


@pytest.mark.parametrize("pause", [False, True])
async def test_a_startup_packet_in_pieces(start: Start, pooled: Way, pause: bool) -> None:
    gateway = await start(auth_type="trust")
    session = await RawSession.open(gateway, pooled)
    packet = StartupMessage(parameters={"user": USER, "database": DATABASE}).encode() + frontend.query(b"SELECT 1")
    for at in range(len(packet)):
        session.send(packet[at : at + 1])
        if pause:
            await asyncio.sleep(0.0005)
    assert session.kinds(await session.until_ready()) == "RKZI"
    assert session.kinds(await session.until_ready()) == "TDCZI"


async def test_the_protocol_is_negotiated(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    for protocol, options, told, secret in (
        (PROTOCOL_3_0, {}, None, 4),
        (PROTOCOL_3_2, {}, None, 32),
        (PROTOCOL_3_0 + 9999, {"_pq_.one": "1"}, PROTOCOL_3_2, 32),
        (PROTOCOL_3_0, {"_pq_.one": "1", "_pq_.two": ""}, PROTOCOL_3_0, 4),
    ):
        session = await RawSession.open(gateway, pooled)
        session.startup({}, protocol=protocol, options=options)
        answers = await session.until_ready()
        assert session.kinds(answers) == ("RKZI" if told is None else "vRKZI")
        if told is not None:
            assert parse_negotiate_protocol(answers[0].body) == (told, list(options))
        assert session.key is not None and len(session.key.secret) == secret and session.key.pid > 0
        assert await session.ask(frontend.query(b"SELECT 1")) == "TDCZI"


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0\0\0\x04",
    b"\0\0\0\x08\0\0\0\0",
    b"\x7f\xff\xff\xff\0\x03\0\0",
    b"\0\0\0\x09\0\x03\0\0x",
    b"\0\0\0\x10\x04\xd2\x16\x2e",
    StartupMessage(parameters={"database": DATABASE}).encode(),
    StartupMessage(protocol=2 << 16, parameters={"user": USER}).encode(),
    StartupMessage(parameters={"user": USER, "database": DATABASE}).encode() + b"p\xff\xff\xff\xff",
    StartupMessage(parameters={"user": USER, "database": DATABASE}).encode() + frontend.query(b"SELECT 1"),
    StartupMessage(parameters={"user": USER, "database": DATABASE}).encode() + frontend.TERMINATE_MESSAGE,
    SSLRequest().encode() * 2,
]


@pytest.mark.parametrize("octets", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_answered_and_the_connection_closed(start: Start, pooled: Way, octets: bytes) -> None:
    gateway = await start(client_login_timeout=1)
    session = await RawSession.open(gateway, pooled)
    session.reads_messages = False
    session.send(octets)
    async with asyncio.timeout(20):
        await session.is_lost.wait()
    answer = session.octets.removeprefix(b"N")
    if answer.startswith(b"R"):
        answer = answer[1 + int.from_bytes(answer[1:5], "big") :]
    assert answer.startswith(b"E") and b"VFATAL\0" in answer
    await until(lambda: gateway.counts(sessions=0))
