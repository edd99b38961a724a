"""Debian's PostgreSQL 15, for what the embedded one lacks: TLS. Its server speaks it, its psql and pgbench too.

Where it is not installed, tests that need it are skipped with that reason; in CI a skip is a failure, and .ci/run
installs it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pgtrunk.certs import CertificateFiles, create_certificates
from pgtrunk_gateway.demo.guarded_folder import GuardedFolder
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres, _initdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BINARIES", "CERTIFIED", "HBA", "DebianPostgres", "debian", "debian_program"]

BINARIES: Final = Path("/usr/lib/postgresql/15/bin")
CERTIFIED: Final = "certified"
"""The user whom the client's certificate of `DebianPostgres.certificates` is for."""
HBA: Final = (
    "local all all scram-sha-256",
    "hostnossl all tls_only 127.0.0.1/32 reject",
    "hostssl all clear_only 127.0.0.1/32 reject",
    f"hostssl all {CERTIFIED} 127.0.0.1/32 cert",
    "host all all 127.0.0.1/32 scram-sha-256",
)


class DebianPostgres(EmbeddedPostgres):
    """A server with TLS, and a certificate for localhost and 127.0.0.1; it runs as an ordinary user, as its base does.

    ``certificates`` are made by `pgtrunk certs`; the client's is for the user `CERTIFIED`.
    """

    def __init__(self, certificates: CertificateFiles, hba: Sequence[str] = HBA, *, max_connections: int = 100) -> None:
        super().__init__(max_connections=max_connections)
        self.certificates = certificates
        self._hba = hba

    @staticmethod
    def binary(name: str) -> Path:
        """psql, pgbench and the rest, whose libpq has TLS."""
        return debian_program(name)

    def _prepare(self) -> None:
        self._binaries = BINARIES
        self._folder = folder = GuardedFolder()
        _initdb(folder, BINARIES)
        copies = {
            "server.crt": self.certificates.server_cert,
            "server.key": self.certificates.server_key,
            "clients.crt": self.certificates.ca_cert,
        }
        for name, original in copies.items():
            self._own(shutil.copyfile(original, folder.path / name))
        hba = folder.path / "hba.tls"
        hba.write_text("".join(f"{line}\n" for line in self._hba))
        self._own(hba)
        self.settings |= {
            "hba_file": str(hba),
            "ssl": "on",
            "ssl_cert_file": str(folder.path / "server.crt"),
            "ssl_key_file": str(folder.path / "server.key"),
            "ssl_ca_file": str(folder.path / "clients.crt"),
        }

    def _own(self, path: Path) -> None:
        path.chmod(0o600)
        self._existing_folder.account.own(path)


def debian_program(name: str) -> Path:
    """A program of Debian's PostgreSQL 15; skips the test where it is not installed."""
    if not (BINARIES / name).exists():
        pytest.skip("Debian's PostgreSQL 15 is not installed (apt-get install postgresql-15)")
    return BINARIES / name


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianPostgres]:
    """One server with TLS for all tests that need it."""
    debian_program("postgres")
    certificates = create_certificates(tmp_path_factory.mktemp("debian") / "certs", client_name=CERTIFIED)
    server = DebianPostgres(certificates)
    with server:
        yield server
