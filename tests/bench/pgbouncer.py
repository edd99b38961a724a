"""PgBouncer, set up as the gateway is: the same pool, the same logins, in front of the same PostgreSQL.

It refuses to run as root, and so runs as the account of a guarded folder, with which it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.machine import cpu_seconds
from pgtrunk_gateway.demo.guarded_folder import CommandFailed, GuardedFolder

if TYPE_CHECKING:
    from bench.site import BenchSite

__all__ = ["NOT_FOUND", "PgBouncer", "find", "free_port", "name_of"]

NOT_FOUND = "PgBouncer is not here: apt-get install pgbouncer, or name one: PGBOUNCER=/path/to/pgbouncer make bench"
_START = 10.0
_STOP = 5.0
_WITH_STATEMENTS = (1, 21)
"""The first version that follows prepared statements from server to server."""
_INI = """\
[databases]
{site.database} = host={site.postgres.host} port={site.postgres.port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/userlist.txt
pool_mode = transaction
default_pool_size = {site.pool_size}
max_client_conn = 2000
log_connections = 0
log_disconnections = 0
logfile = {folder}/pgbouncer.log
"""


def find() -> str | None:
    """The program to compare with: PGBOUNCER, or the one that is installed; None where there is none."""
    named = os.environ.get("PGBOUNCER")
    if named:
        if not os.access(named, os.X_OK):
            raise BenchError(f"PGBOUNCER={named}: no such program")
        return str(Path(named).resolve())
    # Debian has it where ordinary users have no PATH.
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


def name_of(program: str | None) -> str | None:
    """What it calls itself, with its version; None: there is none."""
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0] if said else None


class PgBouncer:
    """One PgBouncer process, from :meth:`start` until the end of ``with``."""

    def __init__(self, program: str) -> None:
        self._folder = GuardedFolder()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._program = self._reachable(program)
            self.name, self.version = self._ask_version()
        except BaseException:
            self._folder.remove()
            raise
        self.port = 0

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_statements(self) -> bool:
        """Whether prepared statements work when transactions are pooled."""
        return self.version >= _WITH_STATEMENTS

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        assert self._process is not None
        return cpu_seconds(self._process.pid)

    def _reachable(self, program: str) -> str:
        """The program, or a copy: the folder's account may not see what is under someone's home."""
        try:
            self._folder.run([program, "--version"])
        except CommandFailed:
            copy = self._folder.path / "pgbouncer"
            shutil.copy2(program, copy)
            self._folder.account.own(copy)
            return str(copy)
        return program

    def _ask_version(self) -> tuple[str, tuple[int, ...]]:
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.match(r"PgBouncer ((\d+)\.(\d+)\S*)", said)
        if found is None:
            raise BenchError(f"{self._program} --version does not say which PgBouncer it is")
        return found[0], (int(found[2]), int(found[3]))

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Its own, which is there before it starts."""
        return self._folder.path

    def start(self, site: BenchSite, port: int | None = None, more: str = "") -> None:
        """At a free port, or that one; ``more``: further lines of its configuration. Raises :class:`BenchError` where
        it does not come up."""
        folder = self._folder
        self.port = free_port() if port is None else port
        statements = "max_prepared_statements = 200\n" if self.has_statements else ""
        self._write("pgbouncer.ini", _INI.format(site=site, port=self.port, folder=folder.path) + statements + more)
        self._write("userlist.txt", f'"{site.user}" "{site.password}"\n')
        process = self._process = folder.popen([self._program, "--quiet", str(folder.path / "pgbouncer.ini")])
        folder.holds(process.pid)
        deadline = time.monotonic() + _START
        while process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        log = folder.path / "pgbouncer.log"
        said = log.read_text(errors="replace").strip() if log.exists() else "nothing"
        raise BenchError(f"PgBouncer did not start (exit code {process.poll()}); it logged: {said}")

    def _write(self, name: str, text: str) -> None:
        path = self._folder.path / name
        path.touch(mode=0o600)
        path.write_text(text)
        self._folder.account.own(path)

    def close(self) -> None:
        """Ends it and removes its folder. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._folder.holds(None)
        self._folder.remove()


def free_port() -> int:
    """One that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
