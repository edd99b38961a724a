"""The demonstration: it works, says how to go on, ends when it is told to, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import until_blocking
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

pytestmark = pytest.mark.timeout(180)

QUICK = ("--queries", "500", "--sessions", "20")


class Demo:
    """A demonstration that runs, in a temporary folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.output = folder.parent / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pgtrunk_gateway.demo", *QUICK, *arguments],
                env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "200", "TERM": "dumb"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str) -> None:
        until_blocking(lambda: words in self.said() or self.process.poll() is not None, 90)
        assert words in self.said()

    def end(self) -> int:
        """Its exit code; afterwards there must be neither a process nor a file of it."""
        code = self.process.wait(60)
        self.check_nothing_is_left()
        return code

    def check_nothing_is_left(self) -> None:
        until_blocking(lambda: not list(self.folder.iterdir()) and not self.processes())

    def processes(self) -> list[str]:
        """Command lines of what runs with the demonstration's folder in its arguments."""
        return [line for line in _command_lines() if str(self.folder) in line]


def _command_lines() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    # Short, and open to the account that PostgreSQL runs as where we are root.
    folder = Path(tempfile.mkdtemp(prefix="demo-")) / "t"
    folder.mkdir()
    for path in (folder.parent, folder):
        path.chmod(0o755)
    folder.chmod(0o1777)
    yield folder
    (folder.parent / "output").unlink(missing_ok=True)
    folder.rmdir()
    folder.parent.rmdir()


def test_once_shows_a_table_and_ends(folder: Path) -> None:
    demo = Demo(folder, "--once")
    assert demo.end() == 0
    for words in ("queries/s", "p50", "p99", "sessions", "QUIC connections", "streams opened", "PostgreSQL backends"):
        assert words in demo.said()
    assert "Traceback" not in demo.said()


def test_it_stays_up_and_says_how_to_connect_until_ctrl_c(folder: Path) -> None:
    demo = Demo(folder)
    demo.wait_for("Ctrl-C stops everything")
    password, port = _psql_line(demo.said())
    answer = subprocess.run(
        [str(EmbeddedPostgres.binary("psql")), "-h", "127.0.0.1", "-p", port, "-U", "app", "-Atc", "SELECT 7", "shop"],
        env={"PGPASSWORD": password, "PGSSLMODE": "disable"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (answer.stdout.strip(), answer.returncode) == ("7", 0), answer.stderr
    script = demo.said()[demo.said().index("import asyncio, pgtrunk") : demo.said().index("Ctrl-C stops")]
    script = "\n".join(line.removeprefix("  ") for line in ("  " + script).splitlines())
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (answer.stdout.strip(), answer.returncode) == ("10000", 0), answer.stderr
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 0
    assert "Traceback" not in demo.said()


def _psql_line(said: str) -> tuple[str, str]:
    match = re.search(r"PGPASSWORD=(\S+) psql -h 127\.0\.0\.1 -p (\d+) -U app shop", said)
    assert match is not None
    return match[1], match[2]


@pytest.mark.parametrize("words", ["ok PostgreSQL 18", "ok gateway"])
def test_ctrl_c_before_the_table(folder: Path, words: str) -> None:
    demo = Demo(folder, "--queries", "1000000", "--once")
    demo.wait_for(words)
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 130
    assert "Traceback" not in demo.said()
    assert "everything is stopped and removed" in demo.said()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_leaves_nothing(folder: Path, signum: signal.Signals) -> None:
    demo = Demo(folder)
    demo.wait_for("Ctrl-C stops everything")
    demo.process.send_signal(signum)
    assert demo.end() == (143 if signum is signal.SIGTERM else -9)


def test_where_the_usual_port_is_taken_it_takes_another(folder: Path) -> None:
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # whoever has it will do
            taken.bind(("127.0.0.1", 6432))
        taken.listen()
        demo = Demo(folder, "--once")
        assert demo.end() == 0
