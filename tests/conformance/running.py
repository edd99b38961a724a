"""Runs pytest over a copy of the suite, in a folder that ends with us, as a user who may run PostgreSQL.

The suite's own needs go into a virtual environment in that folder: nothing of ours depends on them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.suite import copy_suite
from pgtrunk.certs import create_certificates
from pgtrunk_gateway.demo.guarded_folder import CommandFailed, GuardedFolder

__all__ = ["GATEWAY", "REQUIREMENTS", "Run", "find_postgres", "postgres_version", "run"]

REQUIREMENTS = (
    "filelock",
    "psycopg[binary]>=3.3,<3.4",
    "pytest>=8.3",
    "pytest-asyncio>=0.25",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
)
GATEWAY = "pgtrunk-gateway"
_ROOT = Path(__file__).resolve().parents[2]
_DEBIAN = Path("/usr/lib/postgresql")
_AT_MOST = 3600.0
"""Seconds for all of it; each test has its own limit, which is the suite's."""
_STOP = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    """What is run: ``tests`` empty for all of them; ``workers`` of pytest, each with a PostgreSQL of its own."""

    checkout: Path
    postgres: Path
    program: Path | None = None
    """The pooler; None: the gateway of the environment in which the tests run."""
    tests: Sequence[str] = ()
    keyword: str | None = None
    workers: int = 2
    python: Path | None = None
    """An interpreter that has the requirements, if there is one already."""
    by_sidecar: bool = False
    """SQL goes through a sidecar, and over QUIC to the gateway of the environment; the console does not."""


def find_postgres() -> Path:
    """The folder with initdb and pg_ctl: that of PATH, or Debian's newest. Raises :class:`ConformanceError`."""
    on_path = shutil.which("initdb")
    if on_path is not None and shutil.which("pg_ctl") is not None:
        return Path(on_path).resolve().parent
    versions = [path.parent for path in _DEBIAN.glob("*/bin/initdb")]
    if not versions:
        raise ConformanceError("no initdb in PATH, nor Debian's: apt-get install postgresql")
    return max(versions, key=lambda path: float(path.parent.name))


def postgres_version(postgres: Path) -> str:
    said = subprocess.run([postgres / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[2]


def run(plan: Run) -> str:
    """Runs the tests -> pytest's report, as JUnit XML. What pytest prints goes to our own output."""
    folder = GuardedFolder()
    try:
        copy_suite(plan.checkout, folder.path / "suite", plan.tests)
        for path in (folder.path / "suite", *(folder.path / "suite").rglob("*")):
            folder.account.own(path)
        _pytest(plan, folder, plan.python or _environment(folder, plan.program is None))
        report = folder.path / "report.xml"
        if not report.is_file():
            raise ConformanceError("pytest wrote no report: its output says why")
        return report.read_text()
    except CommandFailed as error:
        raise ConformanceError(str(error)) from error
    finally:
        folder.remove()


def _environment(folder: GuardedFolder, with_gateway: bool) -> Path:
    """A virtual environment whose interpreter the folder's account may run -> its python."""
    venv = folder.path / "venv"
    subprocess.run([_interpreter(folder), "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    # Not editable: what is tested is the gateway as it is now, to the end of the run.
    ours = [str(_ROOT), str(_ROOT / "gateway")] if with_gateway else []
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", *REQUIREMENTS, *ours]
    if subprocess.run(pip, check=False).returncode:
        raise ConformanceError("what the suite needs could not be installed: the lines above say why")
    return python


def _interpreter(folder: GuardedFolder) -> str:
    """Ours, or the system's where ours is under root's home, say."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for candidate in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(CommandFailed):
            folder.run([candidate, "-c", check])
            return candidate
    raise ConformanceError("no Python 3.11 that an unprivileged user can run; --python and --program name one")


def _program(plan: Run, folder: GuardedFolder, python: Path) -> Path:
    """What the suite takes for the pooler."""
    if not plan.by_sidecar:
        return plan.program or python.parent / GATEWAY
    certificates = create_certificates(folder.path / "certs")
    script = Path(shutil.copy2(Path(__file__).with_name("by_sidecar.py"), folder.path))
    command = [str(python), str(script), str(certificates.folder)]
    start = folder.path / "by_sidecar"
    start.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    start.chmod(0o755)
    for path in (start, script, certificates.folder, *certificates.folder.iterdir()):
        folder.account.own(path)
    return start


def _pytest(plan: Run, folder: GuardedFolder, python: Path) -> None:
    """A test that fails is no error here."""
    command = [
        "/usr/bin/env",
        f"PATH={plan.postgres}:{os.defpath}",
        f"BOUNCER_EXE={_program(plan, folder, python)}",
        f"TMPDIR={folder.path}",
    ]
    # Short paths, for unix sockets are in them; no output of tests that pass, and the whole log of those that fail.
    command += [str(python), "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder.path}/t"]
    command += [f"--rootdir={folder.path}/suite", "-c", f"{folder.path}/suite/pyproject.toml"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function"]
    command += [f"--junitxml={folder.path}/report.xml", "-n", str(plan.workers), "--dist", "load"]
    command += [] if plan.keyword is None else ["-k", plan.keyword]
    with folder.account.popen(command, cwd=folder.path / "suite", output=sys.stdout.fileno()) as process:
        folder.holds(process.pid)
        try:
            process.wait(_AT_MOST)
        except subprocess.TimeoutExpired:
            raise ConformanceError(f"the tests did not end within {_AT_MOST:.0f} s") from None
        finally:
            _end(process)
            folder.holds(None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks first: the suite's own way out stops its PostgreSQL, which is in no group of ours. Of its poolers it forgets
    those that did not come up in time."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
