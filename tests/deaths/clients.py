"""The clients that a death may meet: an application in this loop, one in its own process, psql behind a sidecar.

Each is brought into a state, can be told to cancel what it runs, and says afterwards what it was told.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from deaths.application import BATCH, COPY, SLEEP, UPDATE, Application
from helpers.sidecars import program
from helpers.site import DATABASE, USER

if TYPE_CHECKING:
    from helpers.sidecars import SidecarProcess

__all__ = ["ApplicationProcess", "ApplicationTask", "Client", "Psql"]

_PATIENCE: Final = 30.0
_TESTS: Final = Path(__file__).parents[1]


class Client(Protocol):
    """See the module."""

    async def enter(self, state: str) -> None: ...

    async def cancel(self) -> None: ...

    async def told(self, state: str) -> str: ...

    async def close(self) -> None: ...


class ApplicationTask(Application):
    """In this loop."""

    def __init__(self, port: int, ca_file: str) -> None:
        super().__init__(port, ca_file, {"user": USER, "database": DATABASE})


class ApplicationProcess:
    """`python -m deaths.application`."""

    def __init__(self, port: int, ca_file: str) -> None:
        self._where = str(port), ca_file
        self.process: asyncio.subprocess.Process

    async def enter(self, state: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "deaths.application", *self._where, state, USER, DATABASE),
            cwd=_TESTS,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert await self._line() == "there"

    async def _line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            return (await self.process.stdout.readline()).decode().strip()

    async def cancel(self) -> None:
        self._order("cancel")

    async def told(self, state: str) -> str:
        if self.process.returncode is not None:
            return "-"
        self._order("tell")
        return await self._line()

    def _order(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())

    async def close(self) -> None:
        await _end(self.process)


_PSQL: Final = {
    "idle": "SELECT 'there';\n",
    "waiting": "\\echo there\nSELECT 1;\n",
    "running": SLEEP.replace(";", r"\;") + ";\n",
    "cancel": SLEEP.replace(";", r"\;") + ";\n",
    "transaction": f"BEGIN;\n{UPDATE};\nSELECT 'there';\n",
    "copy": f"{COPY};\n" + "1000\n" * 1000,
    "pipeline": f"\\startpipeline\n{BATCH} \\bind \\sendpipeline\n\\flushrequest\n\\flush\n",
}
"""What psql is told to do to get into a state; "there" is awaited."""


class Psql:
    """psql, reading its commands from a pipe."""

    def __init__(self, sidecar: SidecarProcess) -> None:
        self._sidecar = sidecar
        self._said = b""
        self.process: asyncio.subprocess.Process

    async def enter(self, state: str) -> None:
        arguments = ("-XAtq", "-v", "VERBOSITY=verbose")
        self.process = await program("psql", self._sidecar, *arguments, stdin=asyncio.subprocess.PIPE)
        if state == "login":
            return
        self._write(_PSQL[state])
        if "there" in _PSQL[state]:
            assert self.process.stdout is not None
            async with asyncio.timeout(_PATIENCE):
                assert await self.process.stdout.readline() == b"there\n"

    def _write(self, commands: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(commands.encode())

    async def cancel(self) -> None:
        self.process.send_signal(signal.SIGINT)

    async def told(self, state: str) -> str:
        if self.process.returncode is not None:
            return "-"
        self._write({"copy": "\\.\n", "pipeline": "\\endpipeline\n"}.get(state, "SELECT 'there';\n"))
        async with asyncio.timeout(_PATIENCE):
            out, err = await self.process.communicate()
        return self._verdict(out.decode(), err.decode())

    @staticmethod
    def _verdict(out: str, err: str) -> str:
        if code := re.search(r"(?:ERROR|FATAL):  (\w{5}):", err):
            return code[1]
        if "FATAL:  " in err:
            return "words"
        return "cut" if "server closed the connection unexpectedly" in err else "answer" if out else err

    async def close(self) -> None:
        await _end(self.process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()
