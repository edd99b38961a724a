"""The command `pgtrunk`: what it lists, what it prints, how it fails."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from pgtrunk.cli import _parser, main
from pgtrunk.sidecar import command

if TYPE_CHECKING:
    from pathlib import Path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"pgtrunk {version('pgtrunk')}\n"


def test_help_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert commands == ["certs", "ping", "sidecar"]


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["ping"]])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


def test_an_error_is_one_line_on_stderr_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ping", "gw:port"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "pgtrunk: 'gw:port' is no gateway address: the port is a number from 1 to 65535\n")


def test_it_runs_as_a_module() -> None:
    run = [sys.executable, "-m", "pgtrunk.cli", "ping", "gw:port"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pgtrunk: ")


async def test_ping_says_how_long_the_handshake_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(identities()[0].pem)
    async with LoopbackServer() as server:
        code = await asyncio.to_thread(main, ["ping", f"127.0.0.1:{server.port}", "--ca", str(ca)])
    assert code == 0
    out = capsys.readouterr().out
    assert re.match(r"127\.0\.0\.1:\d+: connected to 127\.0\.0\.1:\d+ in \d+\.\d\d ms, full handshake\n", out)
    assert "1000 streams allowed" in out


async def test_ping_of_a_gateway_that_is_not_trusted_fails(capsys: pytest.CaptureFixture[str]) -> None:
    async with LoopbackServer() as server:
        code = await asyncio.to_thread(main, ["ping", f"127.0.0.1:{server.port}"])
    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert "certificate" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("order", [None, "random", "disable"])
def test_a_sidecar_takes_a_list_of_gateways(order: str | None) -> None:
    options = [] if order is None else ["--load-balance-hosts", order]
    arguments = _parser().parse_args(["sidecar", "--listen", "127.0.0.1:0", *options, "gw1.test,[::1]:7"])
    trunk = command._manager(arguments)
    assert trunk.gateway == "gw1.test:6432,[::1]:7"
    assert trunk._dialer.quic.gateways.spreads is (order != "disable")
