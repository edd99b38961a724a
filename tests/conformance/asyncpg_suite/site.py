"""Runs the suite's tests in a process of their own: against a PostgreSQL, or against a gateway before it, over QUIC.

Each run has a new server, since a test that fails leaves behind what the next run would find. Behind a gateway the
environment names, in the server's place, a port at which nobody listens: what is not carried does not get there by
another way. The checkout is only read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.asyncpg_suite.names import Outcome, read_record
from conformance.asyncpg_suite.plugin import CA_FILE, GATEWAY, RECORD
from conformance.errors import ConformanceError
from helpers.waiting import until_blocking
from pgtrunk.certs import create_certificates
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["DIRECT", "Suite", "suite_version"]

DIRECT = "direct"
"""The mode without a gateway."""

_TESTS = Path(__file__).resolve().parents[2]
_PYTEST = """\
[pytest]
addopts = --assert=plain --tb=short --import-mode=importlib
filterwarnings = default
timeout = 120
"""
_AT_MOST = 1800.0
"""Seconds for a run; each test has its own limit, above."""
_RAN = (0, 1)
"""Exit codes of pytest after which it is known what each test did."""
_MODES = {
    "session": "default_pool_size = 150",
    # A session is given another backend in each transaction, of several that are there from the start.
    "transaction": "default_pool_size = 20\nmin_pool_size = 5\nserver_round_robin = 1",
}
_INI = """\
[databases]
* = host={host} port={port}

[pgtrunk]
pool_mode = {mode}
{sizes}
max_client_conn = 400
unix_socket_dir = {folder}
quic_listen_addr = 127.0.0.1
quic_listen_port = 0
quic_cert_file = {certificate}
quic_key_file = {key}
auth_type = scram-sha-256
auth_file = {folder}/userlist.txt
"""


@dataclass(frozen=True, slots=True)
class Suite:
    """A checkout of asyncpg, of the version that is installed here, and what of it is run."""

    checkout: Path
    keyword: str | None = None
    needs: Sequence[str] = ("distro",)
    """Packages that the tests import and that are no part of our environment."""

    def run(self, mode: str, tests: Sequence[str] = ()) -> dict[str, Outcome]:
        """Runs them, or ``tests`` alone -> what each did. ``mode`` is `DIRECT` or a pool mode. Raises
        :class:`ConformanceError` where they cannot be run."""
        with (
            tempfile.TemporaryDirectory(prefix="asyncpg-") as place,
            EmbeddedPostgres(max_connections=200) as postgres,
        ):
            folder = Path(place)
            shutil.copytree(self.checkout / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
            # It looks at asyncpg's sources and at no server.
            (folder / "tests" / "test__sourcecode.py").unlink(missing_ok=True)
            (folder / "pytest.ini").write_text(_PYTEST)
            needed = _install(self.needs, folder / "needed")
            with _way(mode, folder, postgres, needed) as environment:
                _pytest(folder, environment, self.keyword, tests)
            return read_record((folder / "record").read_text())


def suite_version(checkout: Path) -> str:
    """The version that the checkout gives itself. Raises :class:`ConformanceError` where it is none of asyncpg."""
    file = checkout / "asyncpg" / "_version.py"
    found = re.search(r"__version__.*= '(.+)'", file.read_text()) if file.is_file() else None
    if found is None or not (checkout / "tests" / "test_pool.py").is_file():
        raise ConformanceError(f"{checkout} is no checkout of asyncpg: it has no asyncpg/_version.py, or no tests")
    return found[1]


@contextlib.contextmanager
def _way(mode: str, folder: Path, postgres: EmbeddedPostgres, needed: Path) -> Iterator[dict[str, str]]:
    """The environment in which the tests find their server."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTEST_"))} | {
        "PGHOST": postgres.host,
        "PGPORT": str(postgres.port),
        "PGUSER": postgres.user,
        "PGPASSWORD": postgres.password,
        "PGDATABASE": "postgres",
        # The server has no TLS, and what asyncpg leaves of the attempt fails a test of its own now and then.
        "PGSSLMODE": "disable",
        "PYTHONPATH": f"{_TESTS}{os.pathsep}{needed}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        RECORD: str(folder / "record"),
    }
    if mode == DIRECT:
        yield environment
        return
    ca_file = _write_ini(mode, folder, postgres)
    with _nobody(postgres.host) as deaf, _gateway(folder) as port:
        yield environment | {"PGPORT": str(deaf), GATEWAY: f"127.0.0.1:{port}", CA_FILE: str(ca_file)}


def _install(packages: Sequence[str], target: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--target", str(target)]
    if packages and subprocess.run([*pip, *packages], check=False).returncode:
        raise ConformanceError("what the suite needs could not be installed: the lines above say why")
    return target


@contextlib.contextmanager
def _nobody(host: str) -> Iterator[int]:
    """A port that is taken, and at which nobody listens."""
    with socket.socket() as held:
        held.bind((host, 0))
        yield held.getsockname()[1]


def _write_ini(mode: str, folder: Path, postgres: EmbeddedPostgres) -> Path:
    """-> the file of the CA."""
    certificates = create_certificates(folder / "certs")
    userlist = folder / "userlist.txt"
    userlist.touch(mode=0o600)
    userlist.write_text(f'"{postgres.user}" "{postgres.password}"\n')
    (folder / "gateway.ini").write_text(
        _INI.format(
            host=postgres.host,
            port=postgres.port,
            mode=mode,
            sizes=_MODES[mode],
            folder=folder,
            certificate=certificates.server_cert,
            key=certificates.server_key,
        )
    )
    return certificates.ca_cert


@contextlib.contextmanager
def _gateway(folder: Path) -> Iterator[int]:
    """A gateway, whose port of QUIC is yielded. What it has said is printed where it did not end in peace."""
    log = folder / "gateway.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "pgtrunk_gateway", str(folder / "gateway.ini")]
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until_blocking(lambda: _port(log) or process.poll() is not None)
        if not (port := _port(log)):
            raise ConformanceError(f"the gateway did not start: {log.read_text()}")
        yield port
        if process.poll() is not None:
            raise ConformanceError(f"the gateway ended by itself: {log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()


def _port(log: Path) -> int:
    found = re.search(r"LOG listening on quic: .*:(\d+)", log.read_text())
    return int(found[1]) if found else 0


def _pytest(folder: Path, environment: Mapping[str, str], keyword: str | None, tests: Sequence[str]) -> None:
    # -P: the folder is not where python looks for packages, or asyncpg's tests would be one.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    command += ["-p", "conformance.asyncpg_suite.plugin", "-c", str(folder / "pytest.ini"), "--rootdir", str(folder)]
    command += [] if keyword is None else ["-k", keyword]
    command += [f"tests/{name}" for name in tests] or ["tests"]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=_AT_MOST, check=False)
    except subprocess.TimeoutExpired:
        raise ConformanceError(f"the tests did not end within {_AT_MOST:.0f} s") from None
    if done.returncode not in _RAN:
        raise ConformanceError(f"pytest ended with exit code {done.returncode}: its output says why")
