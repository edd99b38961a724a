"""What runs on the hosts, besides the client: Postgres, our gateway, PgBouncer, the sidecar, the plain multiplexer.

Each is started when an arm first needs it, and stays for the scenario: one that serves nobody costs nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem import pgbouncer
from netem.errors import LabError
from netem.folder import make_folder
from netem.hosts import end
from netem.topology import ADDRESSES, LAN_DEVICE, WAN_DEVICE, Host
from pgtrunk.certs import CertificateFiles, create_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netem.lab import Lab
    from netem.plan import Arm
    from pgtrunk_gateway.demo.guarded_folder import GuardedFolder

__all__ = ["Servers"]

_ROOT = str(Path(__file__).resolve().parents[1])
_START = 30.0
_FIRST_PORT = 6432
_AUTH = {"": "scram-sha-256", "trust": "trust", "md5": "md5", "scram": "scram-sha-256", "cert": "cert"}
"""PgBouncer's auth_type, and ours, by an arm's login."""
_INI = """\
[databases]
wan = host={database} port={port}

[{section}]
listen_addr = {gateway}, 127.0.0.1
listen_port = {listen}
unix_socket_dir =
listen_backlog = 2048
tcp_defer_accept = 0
auth_type = {auth_type}
auth_file = {folder}/{userlist}
stats_users = {user}
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 5000
max_prepared_statements = 200
query_wait_timeout = 120
log_connections = 0
log_disconnections = 0
logfile = {folder}/{listen}.log
"""


class Servers:
    """The servers of one laboratory. ``pids`` are those that serve the arm of the last :meth:`address`, by job."""

    def __init__(self, lab: Lab, *, pool_size: int = 20, max_connections: int = 700) -> None:
        self.lab = lab
        self.pool_size = pool_size
        self.max_connections = max_connections
        self.pids: dict[str, int] = {}
        self.login: dict[str, Any] = {}
        self.console_port = 0
        """Of the pooler in that arm's way, on the gateway's host."""
        self._postgres = 0
        self._ports: dict[str, int] = {}
        self._guarded: GuardedFolder | None = None
        self._folder = Path()
        self._files: CertificateFiles
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._processes: list[subprocess.Popen[str]] = []

    def open(self) -> None:
        """Makes a folder with certificates, and starts Postgres. Raises :class:`LabError`."""
        self._guarded = make_folder()
        self._folder = self._guarded.path
        # PgBouncer refuses to be root, and has to read what is in here.
        self._folder.chmod(0o755)
        self._files = create_certificates(self._folder / "certs", names=[ADDRESSES["gateway", WAN_DEVICE]])
        lab, networks = self.lab, ("10.77.0.0/24", "10.78.0.0/24")
        argv = [
            sys.executable,
            "-m",
            "netem.postgres",
            ADDRESSES["database", LAN_DEVICE],
            str(self.max_connections),
            *networks,
        ]
        process = lab.hosts.popen("database", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT)
        self._processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise LabError("Postgres did not start on the database's host")
        self.login = json.loads(line)
        self._postgres = self.login.pop("pid")
        # With a password in clear a pooler would compute SCRAM's keys anew for each who logs in, which nobody has to
        # put up with; but it could not log in to Postgres with a secret alone, where its clients do not use SCRAM.
        for name, word in (("secrets.txt", self.login.pop("secret")), ("passwords.txt", self.login["password"])):
            self._write(name, f'"{self.login["user"]}" "{word}"\n')

    def close(self) -> None:
        """Ends them all, the last one first, and removes the folder."""
        for process in reversed(self._processes):
            end(process)
        if self._guarded is not None:
            self._guarded.remove()

    @property
    def ca_file(self) -> str:
        return str(self._files.ca_cert)

    @property
    def certificate(self) -> tuple[str, str]:
        """Of the client, who is the user ``app``, and its key."""
        return str(self._files.client_cert), str(self._files.client_key)

    def user(self, arm: Arm) -> str:
        """Who logs in: Postgres has a user for each login, a pooler has them all in common."""
        if arm.kind == "direct" and arm.login:
            return f"{arm.login}_user"
        user: str = self.login["user"]
        return user

    def address(self, arm: Arm) -> tuple[str, int]:
        """Where this arm's sessions go; starts what they need."""
        self.pids = {"postgres": self._postgres}
        gateway = ADDRESSES["gateway", WAN_DEVICE]
        match arm.kind:
            case "direct" if arm.login == "cert":
                raise LabError(f"{arm.name}: the Postgres here has no TLS, and so no login by certificate")
            case "direct":
                return ADDRESSES["database", LAN_DEVICE], self.login["port"]
            case "pgbouncer" | "pgbouncer-tls":
                return gateway, self._pgbouncer(arm)
            case "sidecar" if not arm.starts_sidecar:
                return "127.0.0.1", self._sidecar(arm)
            case "tcp" | "tls" | "quic" | "sidecar":
                return gateway, self._gateway(arm)
            case "mux":
                return "127.0.0.1", self._mux(arm)

    # -- each of them

    def _gateway(self, arm: Arm) -> int:
        def argv(port: int) -> Sequence[str]:
            extra = self._tls("verify-full" if arm.login == "cert" else "allow")
            extra += f"quic_cert_file = {self._files.server_cert}\nquic_key_file = {self._files.server_key}\n"
            extra += "quic_max_streams = 5000\n"
            if arm.login == "cert":
                extra += f"quic_client_ca_file = {self._files.ca_cert}\n"
            if arm.redundancy:
                extra += f"quic_redundancy = {arm.redundancy}\n"
            ini = self._ini("pgtrunk", port, _AUTH[arm.login], extra)
            return [str(Path(sys.executable).with_name("pgtrunk-gateway")), "--quiet", ini]

        return self._server("gateway", "gateway", argv, _AUTH[arm.login], arm.redundancy)

    def _pgbouncer(self, arm: Arm) -> int:
        def argv(port: int) -> Sequence[str]:
            program = pgbouncer.program()
            if program is None:
                raise LabError("PgBouncer is not here: apt-get install pgbouncer, or PGBOUNCER=/path/to/pgbouncer")
            extra = (
                self._tls("verify-full" if arm.login == "cert" else "require") if arm.kind == "pgbouncer-tls" else ""
            )
            ini = self._ini("pgbouncer", port, _AUTH[arm.login], extra, statements=_has_statements(program))
            as_nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--pdeathsig", "KILL"]
            for file in (self._folder, *self._folder.rglob("*")):
                shutil.chown(file, "nobody")
            return [*as_nobody, "--", program, "--quiet", ini]

        return self._server("pgbouncer", "gateway", argv, arm.kind, _AUTH[arm.login])

    def _sidecar(self, arm: Arm) -> int:
        gateway = f"{ADDRESSES['gateway', WAN_DEVICE]}:{self._gateway(arm)}"
        size = ["--connections", str(arm.connections), "--streams-per-connection", str(arm.streams)]
        size += ["--redundancy", arm.redundancy] if arm.redundancy else []
        argv = [sys.executable, "-m", "pgtrunk.cli", "sidecar", gateway, "--ca", self.ca_file, *size]
        return self._server("sidecar", "client", lambda port: [*argv, "--listen", f"127.0.0.1:{port}"], arm.name)

    def _mux(self, arm: Arm) -> int:
        gateway, behind = ADDRESSES["gateway", WAN_DEVICE], str(self._gateway(arm))
        program = [sys.executable, "-m", "netem.mux"]
        far = self._server("mux-far", "gateway", lambda port: [*program, "far", gateway, str(port), behind])
        return self._server("mux-near", "client", lambda port: [*program, "near", str(port), gateway, str(far)])

    # -- how

    def _server(self, job: str, host: Host, argv: Callable[[int], Sequence[str]], *marks: str) -> int:
        """Starts it where it does not run yet, and returns its port. ``marks`` tell it from others of its job."""
        name = "-".join((job, *filter(None, marks)))
        port = self._ports.setdefault(name, _FIRST_PORT + len(self._ports))
        if name not in self._running:
            self._running[name] = self._start(name, host, port, argv(port))
        process = self._running[name]
        if process.poll() is not None:
            raise LabError(f"{name} has ended (exit code {process.returncode})")
        self.pids[job] = process.pid
        if job in ("gateway", "pgbouncer"):
            self.console_port = port
        return port

    def _start(self, name: str, host: Host, port: int, argv: Sequence[str]) -> subprocess.Popen[str]:
        said = self._folder / f"{name}.said"
        with said.open("w") as log:
            process = self.lab.hosts.popen(host, argv, stdout=log, stderr=log, cwd=_ROOT)
        self._processes.append(process)
        deadline = time.monotonic() + _START
        while not _listens(process.pid, port):
            if process.poll() is not None or time.monotonic() > deadline:
                last = said.read_text().strip().rpartition("\n")[2]
                raise LabError(f"{name} does not listen on port {port} of {host}: {last}")
            time.sleep(0.02)
        return process

    def _tls(self, mode: str) -> str:
        files = self._files
        authority = f"client_tls_ca_file = {files.ca_cert}\n" if mode.startswith("verify") else ""
        return (
            f"client_tls_sslmode = {mode}\n{authority}"
            f"client_tls_cert_file = {files.server_cert}\nclient_tls_key_file = {files.server_key}\n"
        )

    def _ini(self, section: str, listen: int, auth_type: str, extra: str, *, statements: bool = True) -> str:
        text = _INI.format(
            database=ADDRESSES["database", LAN_DEVICE],
            gateway=ADDRESSES["gateway", WAN_DEVICE],
            port=self.login["port"],
            section=section,
            listen=listen,
            auth_type=auth_type,
            userlist="secrets.txt" if auth_type == "scram-sha-256" else "passwords.txt",
            user=self.login["user"],
            folder=self._folder,
            pool_size=self.pool_size,
        )
        if not statements:
            text = text.replace("max_prepared_statements = 200\n", "")
        return str(self._write(f"{listen}.ini", text + extra))

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path


def _has_statements(program: str) -> bool:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"PgBouncer (\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 21)


def _listens(pid: int, port: int) -> bool:
    """Whether something listens on the TCP port in the namespace of this process."""
    try:
        table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    rows = (row.split() for row in table)
    return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)
