"""What the suite starts in the gateway's place: SQL by the sidecar, the console past it, and the end of both."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from conformance.lists import read_expected
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until_blocking

if TYPE_CHECKING:
    from helpers.site import Site

HERE = Path(__file__).parent


@pytest.fixture
def port() -> int:
    """One that was free a moment ago; the suite gives its poolers such, too."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def answers(place: str | tuple[str, int]) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as probe:
        return probe.connect_ex(place) == 0


@pytest.fixture
def started(site: Site, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """What the suite would start, once it listens on its unix socket."""
    place = site.place()
    ini = site.write_ini(place, listen_port=port, quic_cert_file=None, quic_key_file=None)
    command = [sys.executable, str(HERE / "by_sidecar.py"), str(site.certificates.folder), "--quiet"]
    with subprocess.Popen([*command, str(ini)], cwd=place) as process:
        try:
            until_blocking(lambda: answers(str(place / f".s.PGSQL.{port}")) or process.poll() is not None)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
def test_sql_goes_by_the_sidecar_which_ends_with_the_gateway(
    started: subprocess.Popen[bytes], port: int, signum: signal.Signals
) -> None:
    assert isinstance(started.args, list)
    place = Path(str(started.args[-1])).parent
    login: dict[str, Any] = {
        "user": USER,
        "password": PASSWORD,
        "dbname": DATABASE,
        "sslmode": "disable",
        "gssencmode": "disable",
    }
    console = psycopg.connect(host=str(place), port=port, user="pgtrunk", dbname="pgtrunk", autocommit=True)
    with psycopg.connect(host="127.0.0.1", port=port, connect_timeout=20, **login) as session, console:
        assert session.execute("SELECT 1").fetchone() == (1,)
        assert len(console.execute("SHOW STREAMS").fetchall()) == 1
    started.send_signal(signum)
    assert started.wait(30) == (0 if signum == signal.SIGINT else -signum)
    until_blocking(lambda: not answers(("127.0.0.1", port)))


def test_what_is_wrong_is_said_by_the_gateway(site: Site) -> None:
    place = site.place()
    command = [sys.executable, str(HERE / "by_sidecar.py"), str(place)]
    for arguments, words in (([str(place / "none.ini")], "none.ini"), (["--help"], "usage: pgtrunk-gateway")):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert words in done.stdout + done.stderr


def test_its_list_names_what_is_otherwise_with_it() -> None:
    expected = read_expected((HERE / "expected.txt").read_text().splitlines())
    otherwise = read_expected((HERE / "expected_sidecar.txt").read_text().splitlines())
    assert all(name in expected and expected[name] != each for name, each in otherwise.items())
