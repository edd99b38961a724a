"""`pgtrunk ping` and a real gateway: what its logins take, and that its tickets are used."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start


async def ping(gateway: LocalGateway, *options: str) -> int:
    where = f"127.0.0.1:{gateway.quic.port}"
    ca = str(gateway.site.certificates.ca_cert)
    login = ["-U", USER, "-d", DATABASE, "-w"]
    return await asyncio.to_thread(
        main, ["ping", where, "--ca", ca, "--interval", "0", "--count", "1", *login, *options]
    )


@pytest.mark.parametrize(
    ("method", "login", "name"), [("trust", 1, "trust or certificate"), ("scram-sha-256", 3, "scram-sha-256")]
)
async def test_round_trips_by_method(
    start: Start,
    method: str,
    login: int,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    gateway = await start(auth_type=method)
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    assert await ping(gateway, "--json", "--password-file", str(password)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["cold"]["login"]["method"] == name
    # Early data saves the handshake's.
    assert found["trips"] == {"cold": login + 2, "resumed": login + 1, "live": login + 1}
    assert found["resumed"]["resumed"] and not found["full"]["resumed"]
    assert found["protocol"] in ("3.0", "3.2")


async def test_a_login_that_is_refused(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    gateway = await start()
    assert await ping(gateway) == 5
    assert "refused" in capsys.readouterr().err
    assert await ping(gateway, "--json") == 5
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["sqlstate"], found["retry_safe"]) == ("LoginRefused", "28P01", True)
