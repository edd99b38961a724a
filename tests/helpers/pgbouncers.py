"""A real PgBouncer as a peer of gateways, where one is installed: before the tests' PostgreSQL, and as short-lived.

It refuses to run as root, and so runs as the account of a guarded folder, with which it ends.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bench import pgbouncer as installed
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk_gateway.demo.guarded_folder import GuardedFolder

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.site import Site

__all__ = ["NOT_FOUND", "PeerPgBouncer", "find", "pgbouncer"]

NOT_FOUND: Final = f"no PgBouncer that knows peers (1.19 or newer): {installed.NOT_FOUND}"
_WITH_PEERS: Final = (1, 19)
_START: Final = 20.0
_STOP: Final = 10.0
_INI: Final = """\
[databases]
{database} = host={site.postgres.host} port={site.postgres.port} dbname={database}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/userlist.txt
pool_mode = transaction
logfile = {folder}/pgbouncer.log
peer_id = {peer_id}

[peers]
{peers}
"""


@functools.cache
def find() -> str | None:
    """PGBOUNCER, or the one that is installed, if it knows peers; Debian 12 has 1.18, which does not."""
    program = installed.find()
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    version = re.match(r"PgBouncer (\d+)\.(\d+)", said)
    return program if version is not None and (int(version[1]), int(version[2])) >= _WITH_PEERS else None


def _free_port() -> int:
    """A port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class PeerPgBouncer:
    """It listens on ``port``, over TCP."""

    def __init__(self, program: str, port: int) -> None:
        self.port = port
        self._folder = GuardedFolder()
        self._process: subprocess.Popen[bytes] | None = None
        # A copy: the folder's account may not see what is under someone's home.
        self._program = self._folder.path / "pgbouncer"
        shutil.copy2(program, self._program)
        self._folder.account.own(self._program)

    @property
    def address(self) -> dict[str, object]:
        """Host and port, as asyncpg and psycopg take them."""
        return {"host": "127.0.0.1", "port": self.port}

    @property
    def log(self) -> str:
        path = self._folder.path / "pgbouncer.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, site: Site, peer_id: int, peers: str) -> None:
        """``peers``: the lines of its [peers]."""
        folder = self._folder.path
        secret = PASSWORD.replace('"', '""')
        self._write(folder / "userlist.txt", f'"{USER}" "{secret}"\n')
        ini = _INI.format(site=site, database=DATABASE, port=self.port, folder=folder, peer_id=peer_id, peers=peers)
        self._write(folder / "pgbouncer.ini", ini)
        command = [str(self._program), "--quiet", "-v", str(folder / "pgbouncer.ini")]
        process = self._process = self._folder.popen(command)
        self._folder.holds(process.pid)
        deadline = time.monotonic() + _START
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            time.sleep(0.02)
        raise AssertionError(f"PgBouncer did not start (exit code {process.poll()}); it logged: {self.log}")

    def _write(self, path: Path, text: str) -> None:
        path.touch(mode=0o600)
        path.write_text(text)
        self._folder.account.own(path)

    def close(self) -> None:
        """Ends it and removes its folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(_STOP)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._folder.holds(None)
        self._folder.remove()


@contextlib.contextmanager
def pgbouncer(program: str) -> Iterator[PeerPgBouncer]:
    """One that is not started yet: gateways have to be told of its port, and it of theirs."""
    bouncer = PeerPgBouncer(program, _free_port())
    try:
        yield bouncer
    finally:
        bouncer.close()
