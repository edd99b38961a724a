"""`pgtrunk ping` against gateways that are there, that are not, and that are others."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from helpers.fake_postgres import FakePostgres
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from pgtrunk.cli import main
from pgtrunk.ping import blockage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def ca(tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    path.write_bytes(identities()[0].pem)
    return str(path)


async def ping(port: int, *options: str) -> int:
    return await asyncio.to_thread(main, ["ping", f"127.0.0.1:{port}", "--interval", "0", *options])


async def test_what_is_said(ca: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with LoopbackServer() as server:
        assert await ping(server.port, "--ca", ca, "--count", "2") == 0
    out, err = capsys.readouterr()
    for line in (
        r"127\.0\.0\.1:\d+: connected to 127\.0\.0\.1:\d+ in \d+\.\d\d ms, full handshake",
        r"QUIC version 1, TLS 1\.3, pgtrunk/1, \w+",
        r"1000 streams allowed, datagrams of 1200 octets",
        r"certificate for localhost, 127\.0\.0\.1, ::1",
        r"valid until \d{4}-.*\(\d+ days\)",
        r"issued by .*, SHA-256 [0-9a-f]{64}",
        r"ping 2: \d+\.\d\d ms",
        r"2 pings, 2 answered, 0 % lost",
        r"rtt min/avg/max = [\d.]+/[\d.]+/[\d.]+ ms",
    ):
        assert re.search(line, out), (line, out)
    assert "login" not in out
    assert "expires" in err or not err


async def test_round_trips_by_login(
    ca: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "x")
    async with LoopbackServer(FakePostgres()) as server:
        assert await ping(server.port, "--ca", ca, "--count", "1", "-U", "app", "-d", "shop", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trips"] == {"cold": 3, "resumed": 3, "live": 2}
    assert found["cold"]["login"]["method"] == "trust or certificate"
    assert found["protocol"] == "3.2"
    assert len(found["round_trips"]) == 1
    assert found["full"]["certificate"]["names"] == ["localhost", "127.0.0.1", "::1"]


async def test_one_json_object_of_an_error(capsys: pytest.CaptureFixture[str], ca: str) -> None:
    async with LoopbackServer() as server:
        assert await ping(server.port, "--ca", ca, "--server-name", "gw.example", "--json") == 4
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "CertificateError"
    assert found["expected"] == "gw.example"
    assert "localhost" in found["presented"]
    assert found["retry_safe"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--server-name", "gw.example"], "not for 'gw.example'; server_name (--server-name) is the name to expect"),
        ([], "ca_file (--ca) names the CA that signed it"),
    ],
)
async def test_a_wrong_certificate(options: list[str], words: str, ca: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*options, "--ca", ca] if options else options
    async with LoopbackServer() as server:
        assert await ping(server.port, *options) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


async def test_nobody_listens(ca: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with LoopbackServer() as server:
        port = server.port
    assert await ping(port, "--ca", ca) == 1
    assert "nothing listens on that UDP port" in capsys.readouterr().err


async def test_udp_that_is_blocked(
    ca: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as can be seen from here: silence, and somebody who accepts TCP; then the kernel alone; then nobody."""
    async with _swallowed() as (port, tcp):
        async with tcp:
            assert await ping(port, "--ca", ca, "--timeout", "0.2") == 3
        assert "something answers there over TCP" in capsys.readouterr().err
        # Enough for the kernel to accept, on a busy machine too.
        monkeypatch.setattr(blockage, "TIMEOUT", 1.0)
        with socket.create_server(("127.0.0.1", port)):
            assert await ping(port, "--ca", ca, "--timeout", "0.2") == 1
        assert "is the gateway starting, or stuck?" in capsys.readouterr().err
        assert await ping(port, "--ca", ca, "--timeout", "0.2") == 1
        assert "TCP is refused there, so the host is up" in capsys.readouterr().err


@asynccontextmanager
async def _swallowed() -> AsyncIterator[tuple[int, asyncio.Server]]:
    """A port where UDP is not answered, and a server over TCP at it."""
    while True:
        async with LoopbackServer(answers=False) as server:
            try:
                tcp = await asyncio.start_server(_hang_up, "127.0.0.1", server.port)
            except OSError:
                # Somebody has that number over TCP.
                continue
            yield server.port, tcp
            return


async def _hang_up(_: Any, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_a_qlog(ca: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "qlog"
    folder.mkdir()
    async with LoopbackServer() as server:
        assert await ping(server.port, "--ca", ca, "--count", "0", "--qlog", str(folder)) == 0
        assert await ping(server.port, "--ca", ca, "--qlog", str(folder / "away")) == 1
    assert len(list(folder.iterdir())) == 2
    assert "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--interval", "-1"], ["--timeout", "0"], ["--password-file", "/nowhere"]])
def test_wrong_options(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ping", "gw", *options]) == 1
    assert options[0].lstrip("-").replace("-", "_") in capsys.readouterr().err.replace("-", "_")
