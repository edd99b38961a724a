"""A gateway as a process of its own: its log, its signals, its end. And programs of PostgreSQL's that talk to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until_blocking
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helpers.site import Site

__all__ = ["GatewayProcess", "gateway_process", "run_program"]

_ENDS: Final = 40.0
"""Seconds in which a process that shall end must have done so."""


class GatewayProcess:
    """`python -m pgtrunk_gateway gateway.ini`, once it listens or has ended."""

    def __init__(
        self,
        site: Site,
        place: Path,
        ini: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.site = site
        self.place = place
        self.ini = ini
        self._output = place / f"output.{len(list(place.glob('output.*')))}"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pgtrunk_gateway", str(ini), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=place,
                env=os.environ | (environment or {}),
            )

    @property
    def said(self) -> str:
        """All that it has written to stdout and stderr, its log among it."""
        return self._output.read_text(errors="replace")

    @property
    def log(self) -> list[str]:
        """The log's lines without time and pid: "LOG listening on ..."."""
        lines = (re.match(r"\S+ \S+ \S+ \[\d+\] (.*)", line) for line in self.said.splitlines())
        return [line[1] for line in lines if line]

    def until_logged(self, words: str, times: int = 1) -> str:
        """Waits for a line of the log with these words, or for that many of them -> the last."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [line for line in self.log if words in line]
            return len(found) >= times or self.process.poll() is not None

        until_blocking(is_there)
        assert len(found) >= times, f"{words!r} is not in: {self.said}"
        return found[-1]

    def port(self, front: str = "tcp") -> int:
        return int(self.until_logged(f"LOG listening on {front}: ").rpartition(":")[2])

    def conninfo(self, way: str = "tcp", **options: Any) -> dict[str, Any]:
        """What libpq needs to log in over TCP or the unix socket."""
        login = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "connect_timeout": 20}
        host = "127.0.0.1" if way == "tcp" else str(self.place)
        return {"host": host, "port": self.port(), "sslmode": "disable", "gssencmode": "disable", **login, **options}

    def connect(self, way: str = "tcp", **options: Any) -> psycopg.Connection:
        return psycopg.connect(**self.conninfo(way, **options), autocommit=True)

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        """Its exit code, when it has ended by itself."""
        try:
            return self.process.wait(_ENDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the gateway has not ended; it said: {self.said}") from None

    def stop(self, signum: signal.Signals = signal.SIGINT) -> int:
        self.send(signum)
        return self.wait()

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def gateway_process(
    site: Site, *arguments: str, place: Path | None = None, **settings: Any
) -> Iterator[GatewayProcess]:
    """A gateway process; it is killed at the end if it still runs."""
    place = place or site.place()
    gateway = GatewayProcess(site, place, site.write_ini(place, **settings), arguments)
    try:
        yield gateway
        assert "Traceback" not in gateway.said, gateway.said
    finally:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()


def run_program(
    name: str, conninfo: dict[str, Any], *arguments: str, stdin: str = "", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs psql, pgbench or another program of PostgreSQL's to its end."""
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
    names |= {"sslmode": "PGSSLMODE", "gssencmode": "PGGSSENCMODE", "connect_timeout": "PGCONNECT_TIMEOUT"}
    names |= {"options": "PGOPTIONS", "application_name": "PGAPPNAME", "client_encoding": "PGCLIENTENCODING"}
    names |= {f"{end}_protocol_version": f"PG{end.upper()}PROTOCOLVERSION" for end in ("min", "max")}
    environment = os.environ | {names[key]: str(value) for key, value in conninfo.items()}
    done = subprocess.run(
        [EmbeddedPostgres.binary(name), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert not check or done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done
