"""`BackgroundTrunk` without a Postgres: its life, its address, forks, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import pgtrunk
from pgtrunk import BackgroundTrunk, CertificateFileError, TrunkClosed, UsageError
from pgtrunk.wire.startup import StartupMessage

STARTUP = StartupMessage(parameters={"user": "app"}).encode()


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """Fails a test after which a thread is left."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pgtrunk")]


def trunk(**settings: Any) -> BackgroundTrunk:
    """One to a gateway that is not there."""
    return BackgroundTrunk("127.0.0.1:1", **{"dangerously_skip_certificate_verification": True, **settings})


@contextmanager
def driver(trunk: BackgroundTrunk) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(f"{trunk.host}/.s.PGSQL.{trunk.port}")
        yield sock


def test_a_driver_is_told_why_there_is_no_gateway() -> None:
    with trunk() as opened, driver(opened) as sock:
        sock.sendall(STARTUP)
        said = sock.recv(10_000)
        assert b"\0C08001\0Mgateway 127.0.0.1:1 cannot be reached" in said
        stats = opened.stats()
        assert (stats.connections_failed, stats.acquires_failed) == (1, 1)


def test_its_folder_is_its_own_and_goes_with_it() -> None:
    opened = trunk()
    opened.open()
    opened.open()
    folder = Path(opened.host)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert repr(opened) == f"<BackgroundTrunk 127.0.0.1:1 at {folder}/.s.PGSQL.5432>"
    opened.close()
    opened.close()
    assert not folder.exists()
    assert repr(opened) == "<BackgroundTrunk 127.0.0.1:1 closed>"


def test_closing_ends_drivers() -> None:
    opened = trunk()
    opened.open()
    with driver(opened) as sock:
        opened.close()
        assert sock.recv(100) == b""


def test_before_and_after() -> None:
    made = trunk()
    with pytest.raises(TrunkClosed, match="is not open: use `with BackgroundTrunk"):
        _ = made.host
    made.close()
    with pytest.raises(TrunkClosed, match="is closed"):
        made.open()
    for use in (lambda: made.port, made.dsn, made.stats):
        with pytest.raises(TrunkClosed, match="is closed"):
            use()


def test_wrong_arguments_are_told_where_it_is_made() -> None:
    with pytest.raises(UsageError, match="connections=0"):
        trunk(connections=0)
    with pytest.raises(UsageError, match="is no gateway address"):
        BackgroundTrunk("gw:port")


def test_files_that_cannot_be_read_are_told_by_open_which_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wrong = BackgroundTrunk("gw.test", ca_file=str(tmp_path / "missing.pem"))
    with pytest.raises(CertificateFileError, match=r"missing\.pem"):
        wrong.open()
    assert not list(tmp_path.iterdir())


def test_a_temporary_folder_with_a_path_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(UsageError, match="about 100 octets at most; choose another folder"):
        trunk().open()
    assert not list(long.iterdir())


def test_the_dsn_is_libpqs_uri() -> None:
    with trunk() as opened:
        said = opened.dsn(user="a@b", password="s/e:c?r", database="d b", connect_timeout="3")
        login, _, query = said.partition("?")
        assert login == "postgresql://a%40b:s%2Fe%3Ac%3Fr@/d%20b"
        assert unquote(query) == f"host={opened.host}&port=5432&connect_timeout=3"
        assert opened.dsn().startswith("postgresql:///?host=%2F")
        assert opened.dsn(user="app", database="shop").startswith("postgresql://app@/shop?host=")


def test_on_loopback_where_there_are_no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with trunk() as opened:
        assert opened.host == "127.0.0.1"
        with socket.create_connection((opened.host, opened.port), timeout=20) as sock:
            sock.sendall(STARTUP)
            assert b"\0C08001\0" in sock.recv(10_000)


# -- processes ---------------------------------------------------------------------------------------------------------


def run(script: str) -> list[str]:
    """What a script prints, one that has ``made`` and ``opened``, a trunk each, and ends well."""
    head = """
import os, pgtrunk
made, opened = (pgtrunk.BackgroundTrunk("127.0.0.1:1", dangerously_skip_certificate_verification=True) for _ in "12")
opened.open()
folder = opened.host
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + script], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_one_that_is_never_closed_is_closed_at_exit() -> None:
    (folder,) = run("print(folder)")
    assert not os.path.exists(folder)


FORK = """
pid = os.fork()
if pid == 0:
    for use in (lambda: opened.host, opened.open, opened.dsn, opened.stats):
        try:
            use()
        except pgtrunk.UsageError as error:
            print(error, flush=True)
    opened.close()
    made.open()
    print(os.path.exists(folder), made.host != folder, flush=True)
    raise SystemExit
os.waitpid(pid, 0)
print(os.path.exists(folder))
"""


@pytest.mark.filterwarnings("ignore")
def test_after_a_fork() -> None:
    *refused, theirs, ours = run(FORK)
    assert len(refused) == 4
    for error in refused:
        assert "make a BackgroundTrunk in each process, after the fork" in error
    assert theirs == "True True", "the child neither removes the parent's folder, nor is kept from one of its own"
    assert ours == "True", "not even when the child exits"


def test_it_is_imported_when_it_is_used() -> None:
    script = "import sys, pgtrunk; print('pgtrunk.background' in sys.modules, pgtrunk.BackgroundTrunk.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "False BackgroundTrunk\n"
    with pytest.raises(AttributeError, match="no attribute 'Trunk'"):
        _ = pgtrunk.Trunk  # type: ignore[attr-defined]


async def test_beside_a_loop_of_the_programs_own() -> None:
    opened = trunk()
    await asyncio.to_thread(opened.open)
    reader, writer = await asyncio.open_unix_connection(f"{opened.host}/.s.PGSQL.{opened.port}")
    writer.write(STARTUP)
    assert b"\0C08001\0" in await reader.read()
    writer.close()
    await asyncio.to_thread(opened.close)
