"""Runs a scenario: for each cell the link is set, its servers are started, the client runs, and all of it is stored."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import LabError
from netem.measure import measure
from netem.plan import Run
from netem.sampling import Sampler
from netem.servers import Servers
from netem.topology import Command, Host

if TYPE_CHECKING:
    from netem.lab import Lab
    from netem.plan import Arm
    from netem.scenario import Cell, Scenario

__all__ = ["RESULTS", "Runner", "growth", "made"]

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "results" / "wan"
_PATIENCE = 180.0
"""Seconds beyond the load that a client may take: sessions, warm-up, what is under way at the end."""
_TOTALS = {"received", "octets", "lost", "overflowed", "sent", "late_sum", "packets", "bytes", "drops"}
"""Counters of links that only grow."""
_ROUTES: tuple[tuple[Host, tuple[str, ...]], ...] = (
    ("client", ("10.77.0.0/24", "dev", "wan0", "src", "10.77.0.1")),
    ("client", ("10.78.0.0/24", "via", "10.77.0.2")),
    ("gateway", ("10.77.0.0/24", "dev", "wan0", "src", "10.77.0.2")),
    ("database", ("10.77.0.0/24", "via", "10.78.0.1")),
)


class Runner:
    """One scenario in one laboratory. ``command`` is what was typed, to be stored with the results."""

    def __init__(self, scenario: Scenario, lab: Lab, *, command: str, folder: Path = RESULTS) -> None:
        self.scenario = scenario
        self.lab = lab
        self.servers = Servers(lab, pool_size=scenario.pool_size, max_connections=scenario.max_connections)
        self.folder = folder / scenario.name
        self._command = command
        self._routes = ""

    def run(self, tell: Callable[[Cell, dict[str, Any] | None], None]) -> None:
        """All cells; ``tell`` hears of each second (None) and of each cell's result. Raises :class:`LabError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.servers.open()
        try:
            for cell in self.scenario.cells():
                result = self._cell(cell, lambda: tell(cell, None))  # noqa: B023 - used before the next cell
                self._store(cell, result)
                tell(cell, result)
        finally:
            self.servers.close()

    def _cell(self, cell: Cell, second: Callable[[], None]) -> dict[str, Any]:
        host, port = self.servers.address(cell.arm)
        self._set_routes(cell.arm)
        link = self._measured(cell)
        login = self.servers.login
        run = Run(
            arm=cell.arm,
            load=cell.load,
            workload=cell.workload,
            host=host,
            port=port,
            ca_file=self.servers.ca_file,
            seed=cell.repetition,
            rtt=cell.link.rtt,
            cert_file=self.servers.certificate[0],
            key_file=self.servers.certificate[1],
            thresholds=self.scenario.thresholds,
            database=login["database"],
            user=self.servers.user(cell.arm),
            password=login["password"],
        )
        begun = datetime.now(UTC)
        seconds, result, used, carried = self._client(run, cell, second)
        return {
            "scenario": self.scenario.name,
            "question": self.scenario.question,
            "arm": cell.arm.name,
            "setting": cell.setting,
            "repetition": cell.repetition,
            "made": made(self._command, begun),
            "link": link,
            "link_counters": carried,
            "plan": {
                "arm": asdict(cell.arm),
                "load": asdict(cell.load),
                "workload": asdict(cell.workload),
                "thresholds": asdict(self.scenario.thresholds),
                "pool_size": self.scenario.pool_size,
                "max_connections": self.scenario.max_connections,
            },
            "result": result,
            "used": used,
            "seconds": seconds,
        }

    def _measured(self, cell: Cell) -> dict[str, Any]:
        """Sets the link, and measures what it is like now."""
        self.lab.configure(cell.link)
        report = measure(self.lab, pings=300, bulk=0).as_json()
        self.lab.configure(cell.link)  # so that which packets are lost does not depend on the pings
        return report

    def _client(
        self, run: Run, cell: Cell, second: Callable[[], None]
    ) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Each second, the result, what servers used, and what the link carried, from the end of the warm-up on."""
        argv = [sys.executable, "-m", "netem.client"]
        pipe = subprocess.PIPE
        client = self.lab.hosts.popen("client", argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=str(_ROOT))
        assert client.stdin is not None and client.stdout is not None and client.stderr is not None
        json.dump(run.as_json(), client.stdin)
        client.stdin.close()
        pids = {**self.servers.pids, "client": client.pid}
        sampler = Sampler(pids, self.lab.hosts.pids)
        deadline = time.monotonic() + cell.load.seconds + _PATIENCE
        seconds: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        before: dict[str, Any] = {}
        for said in _lines(client.stdout):
            if "ready" in said:
                before = self.lab.link.counters()
                sampler.start()
            elif "second" in said:
                seconds.append(said["second"])
                second()
            elif "result" in said:
                result = said["result"]
            if time.monotonic() > deadline:
                client.kill()
                raise LabError(f"{cell.name}: the client took too long")
        if not result:
            raise LabError(f"{cell.name}: the client failed: {_last_words(client.stderr.read())}")
        client.wait(10)
        client.stderr.close()
        return seconds, result, sampler.stop(), growth(before, self.lab.link.counters())

    def _set_routes(self, arm: Arm) -> None:
        """What TCP does on the long link is a property of its routes."""
        options = (*(("rto_min", f"{arm.rto_min * 1000:g}ms") if arm.rto_min else ()),)
        options += (*(("congctl", arm.congestion) if arm.congestion else ()),)
        if self._routes != " ".join(options):
            self._routes = " ".join(options)
            self.lab.hosts.run(Command(host, ("ip", "route", "change", *route, *options)) for host, route in _ROUTES)

    def _store(self, cell: Cell, result: dict[str, Any]) -> None:
        histogram = result["result"].pop("histogram")
        (self.folder / f"{cell.name}.json").write_text(json.dumps(result, indent=1) + "\n")
        # As hdrhistogram's own log has it: deflated, base64.
        (self.folder / f"{cell.name}.hdr").write_text(histogram + "\n")


def growth(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What a link's counters grew by in between; what is no total stays as it is."""
    ways = {}
    for way in ("there", "back"):
        first, last = before[way], after[way]
        ways[way] = {key: last[key] - first[key] if key in _TOTALS else last[key] for key in last}
    return {**after, **ways}


def _lines(stream: Any) -> Iterator[dict[str, Any]]:
    for line in stream:
        yield json.loads(line)


def _last_words(said: str) -> str:
    """The last line of a traceback that says something; groups of exceptions are drawn with frames."""
    lines = [line.strip(" |+-") for line in said.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


def made(command: str, begun: datetime) -> dict[str, Any]:
    """By what, when and on which machine a result was made."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=_ROOT, check=False
    )
    return {
        # Without where the results went: a path of this machine alone.
        "command": re.sub(r" --output[ =]\S+", "", command),
        "commit": git.stdout.strip(),
        "date": begun.strftime("%Y-%m-%d %H:%M:%S UTC"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    found = re.search(r"^(?:model name|Model|uarch)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
