"""Every way to one Postgres, all of them served at once by processes that last for the whole run.

Two gateways, since one of them asks QUIC clients for certificates; and a sidecar. Nothing of them is in the tests'
loop: what is tested here is what a driver sees.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from helpers.processes import gateway_process
from helpers.sidecars import command
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until_blocking

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.site import Site

__all__ = ["FRONTS", "LIBPQ", "MODES", "PSQL", "Front", "login", "open_fronts"]

FRONTS: Final = ("direct", "tcp", "tls", "unix", "quic", "mtls", "trunk-tcp", "sidecar-unix", "sidecar-tcp")
LIBPQ: Final = tuple(front for front in FRONTS if front not in ("quic", "mtls", "trunk-tcp"))
"""Those that a driver can use which knows nothing of QUIC."""
PSQL: Final = tuple(front for front in LIBPQ if front != "tls")
"""Those of the psql that comes with the tests, which is built without TLS."""
MODES: Final = ("session", "statement")
"""Pool modes beside the usual one. All fronts but mtls have a database for each, "e2e_session" and so on."""
LOGIN: Final = {"user": USER, "password": PASSWORD}


@dataclass(frozen=True)
class Front:
    """One of them. For a trunk there is a gateway to make a trunk to, else a place to connect to."""

    host: str = ""
    port: int = 0
    gateway: str = ""
    trunk: Mapping[str, Any] = field(default_factory=dict)
    """How a `StreamManager` is made."""
    ca_file: str = ""
    """With TLS: the CA to check the server by."""
    between: tuple[int, ...] = ()
    """The pids of the processes through which all goes that is said to Postgres."""

    def asyncpg(self) -> dict[str, Any]:
        """Where and how asyncpg connects, without QUIC."""
        secured = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else False
        return {"host": self.host, "port": self.port, "ssl": secured}

    def libpq(self) -> dict[str, Any]:
        """The same for libpq."""
        secured = {"sslmode": "verify-full", "sslrootcert": self.ca_file} if self.ca_file else {"sslmode": "disable"}
        return {"host": self.host, "port": self.port, "gssencmode": "disable", "connect_timeout": 20, **secured}


@contextlib.contextmanager
def open_fronts(site: Site) -> Iterator[dict[str, Front]]:
    """All of `FRONTS`, by name."""
    certificates = site.certificates
    ca = str(certificates.ca_cert)
    tls: dict[str, Any] = {
        "client_tls_sslmode": "allow",
        "client_tls_cert_file": certificates.server_cert,
        "client_tls_key_file": certificates.server_key,
    }
    identity = {"cert_file": str(certificates.client_cert), "key_file": str(certificates.client_key)}
    modes = {f"{DATABASE}_{mode}": site.target(f"dbname={DATABASE} pool_mode={mode}") for mode in MODES}
    databases = {DATABASE: site.target(), **modes}
    with (
        gateway_process(site, databases=databases, **tls) as gateway,
        gateway_process(site, quic_client_ca_file=ca) as strict,
        _sidecar(site, gateway.port("quic")) as (folder, port, sidecar),
    ):
        own, both = (gateway.process.pid,), (gateway.process.pid, sidecar)
        tcp, quic, strict_quic = gateway.port(), gateway.port("quic"), strict.port("quic")
        yield {
            "direct": Front(site.postgres.host, site.postgres.port),
            "tcp": Front("127.0.0.1", tcp, between=own),
            "tls": Front("127.0.0.1", tcp, ca_file=ca, between=own),
            "unix": Front(str(gateway.place), tcp, between=own),
            "quic": Front(gateway=f"127.0.0.1:{quic}", trunk={"ca_file": ca}, between=own),
            "mtls": Front(gateway=f"127.0.0.1:{strict_quic}", trunk={"ca_file": ca, **identity}),
            "trunk-tcp": Front(gateway=f"127.0.0.1:{tcp}", trunk={"ca_file": ca, "transport": "tcp"}, between=own),
            "sidecar-unix": Front(str(folder), 5432, between=both),
            "sidecar-tcp": Front("127.0.0.1", port, between=both),
        }


@contextlib.contextmanager
def _sidecar(site: Site, gateway_port: int) -> Iterator[tuple[Path, int, int]]:
    """Its folder, its port, and its pid."""
    place = site.place()
    log = place / "log"
    listen = ["--listen", str(place / "run"), "--listen", "127.0.0.1:0", "--ca", str(site.certificates.ca_cert)]
    with log.open("wb") as output:
        process = subprocess.Popen([*command(f"127.0.0.1:{gateway_port}"), *listen], stderr=output)
    try:
        until_blocking(lambda: _port(log) or process.poll() is not None)
        port = _port(log)
        assert port, log.read_text()
        yield place / "run", port, process.pid
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _port(log: Path) -> int:
    found = re.search(r"listening at .*?127\.0\.0\.1:(\d+)", log.read_text())
    return int(found[1]) if found else 0


def login(**options: Any) -> dict[str, Any]:
    """asyncpg's; ``options`` take precedence."""
    return {**LOGIN, "database": DATABASE, "timeout": 20, **options}
