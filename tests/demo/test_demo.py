"""The demonstration, run as a user runs it, and ended in every way and at every moment: nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
import pytest

from helpers.waiting import until_blocking

QUICK: Final = ("--queries", "300", "--sessions", "8", "--connections", "1")
PHASES: Final = ("ok PostgreSQL 18", "ok development certificates", "ok gateway")
_ENDS: Final = 25.0
"""Seconds in which it must have ended that was told to; a busy machine needs some of them."""


@dataclass
class Demo:
    """One run, with all its files under one folder."""

    folder: Path
    process: subprocess.Popen[bytes]
    output: Path = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.folder / "output"

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def until_said(self, words: str) -> None:
        until_blocking(lambda: words in self.said or self.process.poll() is not None, 50)
        assert words in self.said, self.said

    def wait(self) -> int:
        try:
            return self.process.wait(_ENDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended; it said: {self.said}") from None

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends it to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def leftovers(self) -> list[str]:
        """Files, and processes that work in the folder or have been told its name."""
        files = [str(path) for path in self.folder.iterdir() if path != self.output]
        return files + [f"process {pid}: {command}" for pid, command in _processes() if str(self.folder) in command]


def _processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = os.readlink(entry / "cwd")
            yield int(entry.name), f"{command} in {where}"


@contextlib.contextmanager
def demo(*arguments: str) -> Iterator[Demo]:
    # Not pytest's own folder, which a server that runs as another user could not reach.
    with tempfile.TemporaryDirectory(prefix="demo-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pgtrunk_gateway.demo", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"TMPDIR": name, "COLUMNS": "200"},
                start_new_session=True,
            )
        run = Demo(folder, process)
        try:
            yield run
            until_blocking(lambda: not run.leftovers())
        finally:
            process.kill()
            process.wait()
            until_blocking(lambda: not run.leftovers())


def test_once() -> None:
    with demo("--once", *QUICK) as run:
        assert run.process.wait(50) == 0
        assert not run.leftovers()
        said = run.said
    for words in (*PHASES, "queries/s", "p50", "p99", "QUIC connections", "PostgreSQL backends", "gateway CPU"):
        assert words in said
    assert re.search(r"queries +│ +300 ", said)
    assert "Traceback" not in said


def test_it_stays_up_and_says_how_to_connect() -> None:
    with demo(*QUICK) as run:
        run.until_said("Ctrl-C stops everything")
        command = re.search(r"PGPASSWORD=(\S+) psql -h (\S+) -p (\d+) -U (\S+) (\S+)", run.said)
        assert command is not None
        password, host, port, user, database = command.groups()
        session = psycopg.connect(host=host, port=int(port), user=user, password=password, dbname=database)
        assert session.execute("SELECT count(*) FROM accounts").fetchone() == (10_000,)
        lines = run.said.split("Python\n")[1].split("\nCtrl-C")[0].splitlines()
        program = "\n".join(line[2:] for line in lines)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, done.stderr) == ("10000\n", "")
        # A session that is there does not keep it from ending, in a transaction though it is.
        run.interrupt()
        assert run.wait() == 0
        session.close()
        assert not run.leftovers()
        assert "stopped; all files are removed" in run.said
        assert "Traceback" not in run.said


@pytest.mark.parametrize("phase", ["", PHASES[1]])
def test_control_c_while_it_starts(phase: str) -> None:
    with demo("--once", "--queries", "1000000") as run:
        if phase:
            run.until_said(phase)
        else:
            until_blocking(lambda: len(list(run.folder.iterdir())) > 1)
        run.interrupt()
        assert run.wait() == 130
        assert not run.leftovers()
        assert "interrupted; everything is stopped and removed" in run.said
        assert "Traceback" not in run.said


def test_control_c_while_queries_run() -> None:
    with demo("--once", "--queries", "1000000") as run:
        run.until_said(PHASES[-1])
        time.sleep(1.5)
        run.interrupt()
        assert run.wait() == 130
        assert not run.leftovers()
        assert "Traceback" not in run.said


def test_sigterm() -> None:
    with demo(*QUICK) as run:
        run.until_said(PHASES[0])
        run.process.terminate()
        assert run.wait() == 128 + signal.SIGTERM
        assert not run.leftovers()
        assert "Traceback" not in run.said


def test_sigkill_is_cleaned_up_behind() -> None:
    with demo(*QUICK) as run:
        run.until_said(PHASES[-1])
        assert run.leftovers()
        run.process.kill()
        run.process.wait()
        until_blocking(lambda: not run.leftovers())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_end_while_the_database_is_made(signum: signal.Signals) -> None:
    with demo(*QUICK) as run:
        until_blocking(lambda: any("initdb" in leftover for leftover in run.leftovers()))
        os.killpg(run.process.pid, signum)
        run.wait()
        until_blocking(lambda: not run.leftovers())


def test_the_usual_port_is_taken() -> None:
    with socket.socket() as tcp:
        with contextlib.suppress(OSError):
            # If somebody else has it, all the better.
            tcp.bind(("127.0.0.1", 6432))
            tcp.listen()
        with demo(*QUICK) as run:
            run.until_said("Ctrl-C stops everything")
            assert "port 6432" not in run.said
            run.interrupt()
            assert run.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("milliseconds", range(100, 6000, 300))
def test_an_end_at_any_moment(milliseconds: int, signum: signal.Signals) -> None:
    with demo("--once", "--queries", "5000") as run:
        time.sleep(milliseconds / 1000)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid, signum)
            time.sleep(milliseconds % 7 / 10)
            # Somebody impatient.
            os.killpg(run.process.pid, signum)
        run.wait()
        until_blocking(lambda: not run.leftovers())
