"""`pgtrunk sidecar` as a process of its own, and the Postgres programs that talk to it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from helpers.site import Site

__all__ = ["ENVIRONMENT", "SidecarProcess", "command", "program", "run_program", "sidecar_process"]

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {
    "PGPASSWORD": PASSWORD,
    "PGCONNECT_TIMEOUT": "20",
}


class SidecarProcess:
    """A sidecar that listens in a folder of its own and on loopback."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.port = 0
        self.log: list[str] = []

    async def ready(self) -> None:
        """Waits until it listens."""
        line = await self._line_with("listening at")
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.port = int(found[1])

    async def says(self, words: str) -> str:
        """Waits for a line of its log."""
        return await self._line_with(words)

    async def _line_with(self, words: str) -> str:
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            while True:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"it ended before it said {words!r}: {self.log}"
                self.log.append(line)
                if words in line:
                    return line

    def conninfo(self, **options: Any) -> dict[str, Any]:
        """What libpq needs to log in."""
        login = {"user": USER, "password": PASSWORD, "dbname": DATABASE, "connect_timeout": 20}
        return {"host": str(self.folder), "port": 5432, **login, **options}

    async def ended(self, seconds: float = 30) -> int:
        """Waits for its end and returns its exit code; the rest of what it said is in ``log``."""
        assert self.process.stderr is not None
        async with asyncio.timeout(seconds):
            self.log += (await self.process.stderr.read()).decode().splitlines(keepends=True)
            return await self.process.wait()


def command(gateway: str) -> list[str]:
    """How a sidecar is started; options follow."""
    return [sys.executable, "-W", "error", "-m", "pgtrunk.cli", "sidecar", gateway]


@asynccontextmanager
async def sidecar_process(
    site: Site, gateway_port: int, *options: str, folder: Path | None = None
) -> AsyncIterator[SidecarProcess]:
    """Runs a sidecar for a gateway on loopback; whatever happens, it is gone afterwards."""
    folder = folder or site.place() / "run"
    places = ["--listen", str(folder), "--listen", "127.0.0.1:0", "--ca", str(site.certificates.ca_cert)]
    process = await asyncio.create_subprocess_exec(
        *command(f"127.0.0.1:{gateway_port}"),
        *places,
        *options,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    sidecar = SidecarProcess(process, folder)
    try:
        await sidecar.ready()
        yield sidecar
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                assert await sidecar.ended() == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def program(
    name: str,
    sidecar: SidecarProcess,
    *arguments: str,
    host: str | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> asyncio.subprocess.Process:
    """Starts psql or pgbench, as the tests' user in the tests' database."""
    host, port = (str(sidecar.folder), 5432) if host is None else (host, sidecar.port)
    where = ["-h", host, "-p", str(port), "-U", USER]
    return await asyncio.create_subprocess_exec(
        EmbeddedPostgres.binary(name),
        *where,
        *arguments,
        DATABASE,
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run_program(
    name: str, sidecar: SidecarProcess, *arguments: str, host: str | None = None, seconds: float = 40
) -> tuple[int, str, str]:
    """Runs psql or pgbench to its end, and returns exit code, output and errors."""
    process = await program(name, sidecar, *arguments, host=host)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
