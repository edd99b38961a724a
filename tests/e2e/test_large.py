"""Messages that are far larger than any buffer, in both directions and beside each other."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.raw_session import RawSession
from helpers.sidecars import sidecar_process
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Connect, LocalGateway, Start, Way

SIZE = 10 << 20


async def test_large_parameters_and_results(connect: Connect) -> None:
    session = await connect()
    value = bytes(range(256)) * (SIZE // 256)
    assert await session.fetchval("SELECT sha256($1)", value) == hashlib.sha256(value).digest()
    assert await session.fetchval("SELECT repeat('0123456789abcdef', $1)", SIZE // 16) == "0123456789abcdef" * (
        SIZE // 16
    )
    # Both at once: neither side may wait for the other to read.
    assert await session.fetchval("SELECT $1::bytea", value) == value
    assert await session.fetchval("SELECT 1") == 1


async def test_a_large_text_in_the_simple_protocol(connect: Connect) -> None:
    session = await connect()
    assert await session.execute(f"SELECT length('{'x' * SIZE}')") == "SELECT 1"
    assert await session.fetchval("SELECT 1") == 1


async def test_a_large_statement(connect: Connect) -> None:
    session = await connect()
    text = f"SELECT length('{'y' * (1 << 20)}') + $1::int"
    assert await session.fetchval(text, 1) == (1 << 20) + 1
    assert await session.fetchval(text, 2) == (1 << 20) + 2


async def test_an_error_in_the_middle_of_a_large_result(connect: Connect) -> None:
    session = await connect()
    with pytest.raises(Exception, match="division by zero"):
        await session.fetch("SELECT repeat('x', 100000), 1 / (n - 200) FROM generate_series(1, 300) n")
    assert await session.fetchval("SELECT 1") == 1


async def test_large_things_beside_each_other(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    sessions = [await gateway.connect(pooled) for _ in range(5)]

    async def use(at: int) -> None:
        value = bytes([at]) * (SIZE // 10)
        for _ in range(2):
            async with sessions[at].transaction():
                assert await sessions[at].fetchval("SELECT $1::bytea", value) == value
                assert await sessions[at].fetchval("SELECT $1::int", at) == at

    await asyncio.gather(*(use(at) for at in range(5)))


LIMIT = 1 << 20


async def is_refused(conninfo: dict[str, Any]) -> None:
    """Who sends more than `LIMIT` at once is told so, while it sends, and loses its transaction."""
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
        async with await psycopg.AsyncConnection.connect(**conninfo) as session:
            await session.execute("INSERT INTO kept VALUES (1)")
            await session.execute("INSERT INTO kept SELECT length(%s)", ["x" * SIZE])
    told = refused.value.diag
    assert (told.severity, told.message_detail) == ("FATAL", f"max_packet_size = {LIMIT}")
    assert "max_packet_size" in (told.message_hint or "")


async def table(gateway: LocalGateway) -> Any:
    session = await gateway.connect("direct")
    await session.execute("DROP TABLE IF EXISTS kept; CREATE TABLE kept (n int)")
    return session


@pytest.mark.parametrize("libpq", ["tcp", "unix"])
async def test_what_is_too_large_is_refused_in_words(start: Start, libpq: Way) -> None:
    gateway = await start(max_packet_size=LIMIT)
    direct = await table(gateway)
    for _ in range(3):
        await is_refused(gateway.conninfo(libpq))
    assert await direct.fetchval("SELECT count(*) FROM kept") == 0


async def test_what_is_too_large_is_refused_in_words_through_a_sidecar(start: Start) -> None:
    gateway = await start(max_packet_size=LIMIT)
    direct = await table(gateway)
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        for _ in range(3):
            await is_refused(sidecar.conninfo())
    assert await direct.fetchval("SELECT count(*) FROM kept") == 0


LARGE = b"x" * (2 * LIMIT)


@pytest.mark.parametrize(
    "message",
    [
        frontend.query(b"SELECT '" + LARGE + b"'"),
        frontend.parse(b"", b"SELECT $1") + frontend.bind(b"", b"", [LARGE]),
        frontend.parse(b"s", b"SELECT '" + LARGE + b"'"),
        frontend.query(b"COPY kept FROM STDIN") + frontend.copy_data(LARGE),
        frontend.query(b"SELECT 1") + b"F" + (2 * LIMIT).to_bytes(4, "big") + LARGE,
    ],
    ids=["query", "bind", "parse", "copy", "function call"],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_each_kind_of_message_that_is_too_large(start: Start, pooled: Way, message: bytes, whole: bool) -> None:
    gateway = await start(max_packet_size=LIMIT, auth_type="trust", default_pool_size=1)
    await table(gateway)
    session = await RawSession.start(gateway, pooled)
    # The head alone is enough to know.
    session.send(message if whole else message[: -LIMIT - 1])
    (error,) = [message.error for message in await session.until("E") if message.kind == "E"]
    assert (error.severity, error.sqlstate) == ("FATAL", "54000")
    if not whole:
        assert not session.is_lost.is_set()
        session.send(message[-LIMIT - 1 :])
    await session.until_lost()
    after = await RawSession.start(gateway, pooled)
    assert await after.ask(frontend.query(b"SELECT count(*) FROM kept")) == "TDCZI"


async def test_a_reload_of_the_limit_reaches_open_sessions(start: Start, pooled: Way) -> None:
    gateway = await start(auth_type="trust")
    kept, refused = [await RawSession.start(gateway, pooled) for _ in range(2)]
    asks = frontend.query(b"SELECT length('" + LARGE + b"')"), frontend.query(b"SELECT '" + b"x" * 30_000 + b"'")
    for ask in asks:
        assert await kept.ask(ask) == "TDCZI"
    for limit, ask in zip((LIMIT, 10_000), asks, strict=True):
        refused = await RawSession.start(gateway, pooled)
        gateway.site.write_ini(gateway.place, auth_type="trust", listen_port=gateway.port, max_packet_size=limit)
        await gateway.gateway.operations.reload()
        refused.send(ask)
        assert [message.error.sqlstate for message in await refused.until_lost() if message.kind == "E"] == ["54000"]
    gateway.site.write_ini(gateway.place, auth_type="trust", listen_port=gateway.port)
    await gateway.gateway.operations.reload()
    for ask in asks:
        assert await kept.ask(ask) == "TDCZI"
