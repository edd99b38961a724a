"""What runs on the hosts, besides the client: Postgres, our gateway, PgBouncer, the sidecar, the plain multiplexer.

Each is started when an arm first needs it, and stays for the scenario: one that serves nobody costs nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import LabError
from netem.topology import ADDRESSES, LAN_DEVICE, WAN_DEVICE, Host
from pgtrunk.certs import CertificateFiles, create_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netem.lab import Lab
    from netem.plan import Arm

__all__ = ["Servers"]

_ROOT = str(Path(__file__).resolve().parents[1])
_START = 30.0
_GATEWAY, _PGBOUNCER, _PGBOUNCER_TLS, _MUX, _NEAR = 6432, 6433, 6434, 6435, 6436
_INI = """\
[databases]
wan = host={database} port={port}

[{section}]
listen_addr = {gateway}, 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/userlist.txt
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
    """The servers of one laboratory. ``pids`` are those to sample, by what they are."""

    def __init__(self, lab: Lab, *, pool_size: int = 20) -> None:
        self.lab = lab
        self.pool_size = pool_size
        self.pids: dict[str, int] = {}
        self.login: dict[str, Any] = {}
        self._folder = Path()
        self._files: CertificateFiles
        self._running: dict[str, subprocess.Popen[str]] = {}

    def open(self) -> None:
        """Makes a folder with certificates, and starts Postgres. Raises :class:`LabError`."""
        self._folder = Path(tempfile.mkdtemp(prefix="pgtrunk-wan-"))
        # PgBouncer refuses to be root, and has to read what is in here.
        self._folder.chmod(0o755)
        self._files = create_certificates(self._folder / "certs", names=[ADDRESSES["gateway", WAN_DEVICE]])
        lab, networks = self.lab, ("10.77.0.0/24", "10.78.0.0/24")
        argv = [sys.executable, "-m", "netem.postgres", ADDRESSES["database", LAN_DEVICE], *networks]
        process = lab.hosts.popen("database", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise LabError("Postgres did not start on the database's host")
        self.login = json.loads(line)
        self.pids["postgres"] = self.login.pop("pid")
        self._write("userlist.txt", f'"{self.login["user"]}" "{self.login["password"]}"\n')

    def close(self) -> None:
        """Removes the folder; the processes end with the hosts."""
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def ca_file(self) -> str:
        return str(self._files.ca_cert)

    def address(self, arm: Arm) -> tuple[str, int]:
        """Where this arm's sessions go; starts what they need."""
        gateway = ADDRESSES["gateway", WAN_DEVICE]
        match arm.kind:
            case "direct":
                return ADDRESSES["database", LAN_DEVICE], self.login["port"]
            case "pgbouncer":
                return gateway, self._pgbouncer(_PGBOUNCER, "")
            case "pgbouncer-tls":
                return gateway, self._pgbouncer(_PGBOUNCER_TLS, self._tls())
            case "tcp" | "tls" | "quic":
                return gateway, self._gateway()
            case "sidecar":
                return "127.0.0.1", self._sidecar(arm)
            case "mux":
                return "127.0.0.1", self._mux()

    # -- each of them

    def _gateway(self) -> int:
        def argv() -> Sequence[str]:
            tls = self._tls().replace("require", "allow")
            quic = f"quic_cert_file = {self._files.server_cert}\nquic_key_file = {self._files.server_key}\n"
            quic += "quic_max_streams = 5000\n"
            ini = self._ini("gateway.ini", "pgtrunk", _GATEWAY, tls + quic)
            return [str(Path(sys.executable).with_name("pgtrunk-gateway")), "--quiet", ini]

        return self._server("gateway", "gateway", _GATEWAY, argv)

    def _pgbouncer(self, port: int, extra: str) -> int:
        def argv() -> Sequence[str]:
            program = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")
            if program is None:
                raise LabError("PgBouncer is not here: apt-get install pgbouncer, or PGBOUNCER=/path/to/pgbouncer")
            ini = self._ini(f"{port}.ini", "pgbouncer", port, extra, statements=_has_statements(program))
            as_nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--pdeathsig", "KILL"]
            for file in (self._folder, *self._folder.rglob("*")):
                shutil.chown(file, "nobody")
            return [*as_nobody, "--", program, "--quiet", ini]

        return self._server(f"pgbouncer-{port}", "gateway", port, argv)

    def _sidecar(self, arm: Arm) -> int:
        name = f"sidecar-{arm.name}"
        port = _NEAR + 10 + sum(each.startswith("sidecar-") for each in self._running if each != name)
        gateway = f"{ADDRESSES['gateway', WAN_DEVICE]}:{self._gateway()}"
        size = ["--connections", str(arm.connections), "--streams-per-connection", str(arm.streams)]
        argv = [sys.executable, "-m", "pgtrunk.cli", "sidecar", gateway, "--ca", self.ca_file, *size]
        return self._server(name, "client", port, lambda: [*argv, "--listen", f"127.0.0.1:{port}"])

    def _mux(self) -> int:
        gateway = ADDRESSES["gateway", WAN_DEVICE]
        far = [sys.executable, "-m", "netem.mux", "far", gateway, str(_MUX), str(self._gateway())]
        self._server("mux-far", "gateway", _MUX, lambda: far)
        near = [sys.executable, "-m", "netem.mux", "near", str(_NEAR), gateway, str(_MUX)]
        return self._server("mux-near", "client", _NEAR, lambda: near)

    # -- how

    def _server(self, name: str, host: Host, port: int, argv: Callable[[], Sequence[str]]) -> int:
        """Starts it where it does not run yet, and returns its port when it listens."""
        if name in self._running:
            if self._running[name].poll() is not None:
                raise LabError(f"{name} has ended (exit code {self._running[name].returncode})")
            return port
        log = (self._folder / f"{name}.said").open("w")
        with log:
            process = self.lab.hosts.popen(host, argv(), stdout=log, stderr=log, cwd=_ROOT)
        deadline = time.monotonic() + _START
        while not _listens(process.pid, port):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / f"{name}.said").read_text().strip().rpartition("\n")[2]
                raise LabError(f"{name} does not listen on port {port} of {host}: {said}")
            time.sleep(0.02)
        self._running[name] = process
        self.pids[name] = process.pid
        return port

    def _tls(self) -> str:
        files = self._files
        return (
            "client_tls_sslmode = require\n"
            f"client_tls_cert_file = {files.server_cert}\nclient_tls_key_file = {files.server_key}\n"
        )

    def _ini(self, name: str, section: str, listen: int, extra: str, *, statements: bool = True) -> str:
        text = _INI.format(
            database=ADDRESSES["database", LAN_DEVICE],
            gateway=ADDRESSES["gateway", WAN_DEVICE],
            port=self.login["port"],
            section=section,
            listen=listen,
            folder=self._folder,
            pool_size=self.pool_size,
        )
        if not statements:
            text = text.replace("max_prepared_statements = 200\n", "")
        return str(self._write(name, text + extra))

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
