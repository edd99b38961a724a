"""What the demonstration runs on: one temporary folder with a PostgreSQL server, certificates and a gateway process.

The gateway is a process of its own, as it will be for everybody: what the table says of it is then not the work of one
interpreter that does everything. Whatever ends us, the folder's guard ends it and removes the folder.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import asyncpg

from pgtrunk.certs import CertificateFiles, create_certificates
from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway.demo import interrupts
from pgtrunk_gateway.demo.guarded_folder import CommandFailed, GuardedFolder, uninterrupted
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["DemoError", "Site"]

_PORT = 6432
_START = 20.0
_STOP = 10.0
_ATTEMPTS = 5
_GRACE = 1.0
_INI = """\
[databases]
shop = host={pg_host} port={pg_port}

[pgtrunk]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir = {folder}
quic_cert_file = {files.server_cert}
quic_key_file = {files.server_key}
auth_type = scram-sha-256
auth_file = {folder}/userlist.txt
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 2000
log_connections = 0
log_disconnections = 0
logfile = {folder}/gateway.log
"""


class DemoError(PgtrunkError):
    """The demonstration cannot be set up."""

    sqlstate = "58000"


class Site:
    """The parts, once :meth:`open` has made them; :meth:`close` leaves nothing behind. Both block."""

    user = "app"
    database = "shop"
    pool_size = 20

    def __init__(self) -> None:
        self.password = secrets.token_urlsafe(12)
        self.port = 0
        self.postgres = EmbeddedPostgres(max_connections=100)
        self.folder = Path()
        self.files: CertificateFiles
        self._guarded: GuardedFolder | None = None
        self._gateway: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the parts, in order -------------------------------------------------------------------------------------------

    def open_folder(self) -> None:
        try:
            self._guarded = GuardedFolder()
        except CommandFailed as error:
            raise DemoError(str(error)) from error
        self.folder = self._guarded.path

    def start_postgres(self) -> None:
        # PostgreSQL's folders go into ours, so that there is one; those of others in this process do not.
        before, tempfile.tempdir = tempfile.tempdir, str(self.folder)
        try:
            self.postgres.start()
        finally:
            tempfile.tempdir = before
        interrupts.run(self._create_database())

    def make_certificates(self) -> None:
        self.files = create_certificates(self.folder / "certs", client_name=self.user)

    def start_gateway(self) -> None:
        """Raises :class:`DemoError` with the gateway's own words where it does not start."""
        userlist = self.folder / "userlist.txt"
        userlist.touch(mode=0o600)
        userlist.write_text(f'"{self.user}" "{self.password}"\n')
        for attempt in range(_ATTEMPTS):
            self.port = _free_port()
            try:
                self._start_gateway()
            except DemoError as error:
                # Between our look at the port and the gateway's bind someone else may have taken it.
                if "cannot listen" not in str(error) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _start_gateway(self) -> None:
        assert self._guarded is not None
        ini = self.folder / "gateway.ini"
        ini.write_text(
            _INI.format(
                pg_host=self.postgres.host,
                pg_port=self.postgres.port,
                port=self.port,
                folder=self.folder,
                files=self.files,
                pool_size=self.pool_size,
            )
        )
        with (self.folder / "gateway.out").open("wb") as output, uninterrupted():
            # Ctrl-C in the terminal is for us: the gateway is stopped in its turn.
            self._gateway = subprocess.Popen(
                [sys.executable, "-m", "pgtrunk_gateway", "-q", str(ini)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._guarded.holds(self._gateway.pid)
        self._await_gateway(self._gateway)

    def _await_gateway(self, gateway: subprocess.Popen[bytes]) -> None:
        # Its unix socket is the last that it opens, and cannot be anybody else's, as a port could.
        deadline = time.monotonic() + _START
        while gateway.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.folder / f".s.PGSQL.{self.port}"))
                return
            time.sleep(0.02)
        said = (self.folder / "gateway.out").read_text(errors="replace").strip()
        log = self.folder / "gateway.log"
        if not said and log.exists():
            said = log.read_text(errors="replace").strip()
        raise DemoError(f"the gateway did not start (exit code {gateway.poll()}): {said or 'it said nothing'}")

    async def _create_database(self) -> None:
        connection = await asyncpg.connect(self.postgres.dsn(), timeout=10)
        try:
            await connection.execute(f"CREATE ROLE {self.user} LOGIN PASSWORD '{self.password}'")
            await connection.execute(f"CREATE DATABASE {self.database} OWNER {self.user}")
        finally:
            await connection.close()

    # -- what is seen of it --------------------------------------------------------------------------------------------

    @property
    def gateway_cpu(self) -> float:
        """Seconds of CPU that the gateway has used; 0 where the system does not say."""
        if self._gateway is None:
            return 0.0
        try:
            fields = Path(f"/proc/{self._gateway.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        # Clock ticks, of which Linux shows programs a hundred a second whatever it counts itself.
        return (int(fields[11]) + int(fields[12])) / 100

    async def backends(self) -> int:
        """Connections that PostgreSQL has from the gateway."""
        connection = await asyncpg.connect(self.postgres.dsn(), timeout=10)
        try:
            count: int = await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", self.user
            )
        finally:
            await connection.close()
        return count

    def check(self) -> None:
        """Raises :class:`DemoError` where the gateway has died."""
        if self._gateway is not None and self._gateway.poll() is not None:
            raise DemoError(f"the gateway has ended with exit code {self._gateway.returncode}")

    def wait(self) -> None:
        """Returns never: raises KeyboardInterrupt, or :class:`DemoError` where the gateway dies."""
        assert self._gateway is not None
        self._gateway.wait()
        self.check()

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops everything and removes the folder. Idempotent."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            # Transactions may end, but somebody's forgotten psql shall not keep a Ctrl-C waiting.
            for signum, patience in ((signal.SIGINT, _GRACE), (signal.SIGQUIT, _STOP), (signal.SIGKILL, _STOP)):
                gateway.send_signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    gateway.wait(patience)
                    break
        self.postgres.close()
        if self._guarded is not None:
            self._guarded.holds(None)
            self._guarded.remove()
            self._guarded = None


def _free_port() -> int:
    """The usual port where it is free for TCP and UDP, or one that the system has free."""
    for wanted in (_PORT, *[0] * 20):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", wanted))
                port: int = tcp.getsockname()[1]
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DemoError("no port is free for both TCP and UDP on 127.0.0.1")
