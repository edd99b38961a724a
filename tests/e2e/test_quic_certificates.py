"""Certificates of QUIC that are replaced by a reload, under a session that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.certificates import SERVER_AUTH, authority
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start


async def reload(gateway: LocalGateway, **settings: Any) -> None:
    gateway.site.write_ini(gateway.place, **settings)
    await gateway.gateway.operations.reload()


async def test_a_new_certificate_under_a_running_session(start: Start, tmp_path: Path) -> None:
    gateway = await start()
    running = await gateway.connect("quic")
    assert await running.fetchval("SELECT 1") == 1
    ca = authority("the next")
    cert, key = ca.issue("gateway", usage=[SERVER_AUTH], names=["127.0.0.1"]).save(tmp_path, "next")
    root = tmp_path / "ca.pem"
    root.write_bytes(ca.pem)
    await reload(gateway, quic_cert_file=cert, quic_key_file=key)
    # The connection goes on, and so do new streams in it.
    assert await running.fetchval("SELECT 2") == 2
    assert await (await gateway.connect("quic")).fetchval("SELECT 3") == 3
    later = await gateway.trunk(ca_file=str(root))
    connection = await later.connect(user=USER, password=PASSWORD, database=DATABASE, timeout=20)
    gateway.connections.append(connection)
    assert await connection.fetchval("SELECT 4") == 4
    stranger = await gateway.trunk()
    with pytest.raises(PgtrunkError, match="certificate"):
        await stranger.connect(user=USER, password=PASSWORD, database=DATABASE, timeout=20)


async def test_a_reload_that_cannot_be_changes_nothing(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start()
    _, key = authority().save(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"quic_key_file .* is not the key of"):
        await reload(gateway, quic_key_file=key)
    connection = await gateway.connect("quic")
    assert await connection.fetchval("SELECT 1") == 1
    # That a reload has failed is logged as an error, as it is meant to be.
    caplog.clear()
