"""The client against the gateway's own listener, on both event loops: addresses, certificates, and the end of it."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from helpers.certificates import authority
from helpers.fake_postgres import FakePostgres
from helpers.listening import CA, server_config
from helpers.trunks import until
from pgtrunk import CertificateError, StreamManager
from pgtrunk_gateway.quic.server import Listener, listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

DSN = "postgresql://app:secret@/shop"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on asyncio's own loop and on uvloop's."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    @wraps(test)
    def running(*, run: Callable[[Any], None], **fixtures: Any) -> None:
        run(test(**fixtures))

    signature = inspect.signature(test)
    run = inspect.Parameter("run", inspect.Parameter.KEYWORD_ONLY)
    vars(running)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), run])
    made: Callable[..., None] = running
    return made


@asynccontextmanager
async def listening(folder: Path, host: str = "127.0.0.1", **changes: Any) -> AsyncIterator[tuple[Listener, str]]:
    """A listener with a Postgres behind it, and its address as a manager takes it. Nothing may be left of it."""
    postgres = FakePostgres()
    config = server_config(folder, **changes)
    listener = await listen(host, 0, config=config, accept=lambda transport: postgres())
    port = listener.addresses[0][1]
    try:
        yield listener, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        listener.close()
        async with asyncio.timeout(10):
            await listener.wait_closed()
        assert (listener.connections, listener.streams, postgres.sessions) == (0, 0, {})


async def run_pool(trunk: StreamManager) -> None:
    async with trunk.create_pool(DSN, min_size=5, max_size=12) as pool:
        assert await asyncio.gather(*(pool.fetchval("select 1") for _ in range(200))) == [1] * 200


@on_both_loops
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_pool_over_each_family(tmp_path: Path, host: str) -> None:
    async with listening(tmp_path, host) as (listener, address):
        async with StreamManager(address, ca_data=CA.pem, connections=3, streams_per_connection=5) as trunk:
            await run_pool(trunk)
            await until(lambda: listener.streams == 0)
            assert trunk.stats().streams_in_use == 0
        await until(lambda: listener.connections == 0)


@on_both_loops
async def test_a_cancelled_query_leaves_its_session_usable(tmp_path: Path) -> None:
    async with (
        listening(tmp_path) as (_, address),
        StreamManager(address, ca_data=CA.pem, connections=1, streams_per_connection=1) as trunk,
    ):
        connection = await trunk.connect(DSN)
        sleeping = asyncio.create_task(connection.execute("sleep"))
        await asyncio.sleep(0)
        sleeping.cancel()
        await asyncio.wait([sleeping])
        assert await connection.fetchval("select 1") == 1
        assert trunk.stats().cancels_sent == 1
        await connection.close()


@on_both_loops
async def test_a_client_certificate_opens_a_gateway_that_asks_for_one(tmp_path: Path) -> None:
    clients = authority("clients")
    (tmp_path / "clients.pem").write_bytes(clients.pem)
    cert_file, key_file = clients.issue("app").save(tmp_path, "app")
    async with listening(tmp_path, client_ca_file=str(tmp_path / "clients.pem")) as (_, address):
        async with StreamManager(address, ca_data=CA.pem, cert_file=cert_file, key_file=key_file) as trunk:
            await run_pool(trunk)
        async with StreamManager(address, ca_data=CA.pem) as trunk:
            with pytest.raises(CertificateError):
                await trunk.connect(DSN)
            assert trunk.stats().streams_opened == 0


@on_both_loops
async def test_a_gateway_of_another_ca_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    async with (
        listening(tmp_path) as (listener, address),
        StreamManager(address, ca_data=authority("another").pem) as trunk,
    ):
        with pytest.raises(CertificateError):
            await trunk.connect(DSN)
        assert listener.streams == 0
