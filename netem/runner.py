"""Runs a scenario: for each cell the link is set, its servers are started, the client runs, and all of it is stored."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.measure import measure
from netem.plan import Run
from netem.play import Play
from netem.servers import Servers
from netem.topology import ADDRESSES, HOSTS, WAN_DEVICE, Command, Host

if TYPE_CHECKING:
    from netem.lab import Lab
    from netem.plan import Arm
    from netem.scenario import Cell, Scenario

__all__ = ["RESULTS", "Runner", "made"]

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "results" / "wan"
_PINGS = 250
_LATE = 0.015
"""Seconds above the link's round trip from which an answer is late."""
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
        play = Play(self.lab, cell.name)
        play.start()
        try:
            link = self._measured(cell)
            begun = datetime.now(UTC)
            place = (ADDRESSES["gateway", WAN_DEVICE], self.servers.console_port)
            play.play(self._run(cell, host, port), self.servers.pids, place, second)
        finally:
            play.close()
        return {
            "scenario": self.scenario.name,
            "question": self.scenario.question,
            "arm": cell.arm.name,
            "setting": cell.setting,
            "repetition": cell.repetition,
            "made": made(self._command, begun),
            "link": link,
            "link_counters": play.carried,
            "plan": {
                "arm": asdict(cell.arm),
                "load": asdict(cell.load),
                "workload": asdict(cell.workload),
                "thresholds": asdict(self.scenario.thresholds),
                "pool_size": self.scenario.pool_size,
                "max_connections": self.scenario.max_connections,
            },
            "result": play.result,
            "used": play.used,
            "seconds": play.seconds,
        }

    def _run(self, cell: Cell, host: str, port: int) -> Run:
        login = self.servers.login
        lossy = any(way.loss or way.burst for way in (cell.link.there, cell.link.back))
        return Run(
            arm=cell.arm,
            load=cell.load,
            workload=cell.workload,
            host=host,
            port=port,
            ca_file=self.servers.ca_file,
            seed=cell.repetition,
            rtt=cell.link.rtt,
            late_after=cell.link.rtt + _LATE if lossy else 0.0,
            cert_file=self.servers.certificate[0],
            key_file=self.servers.certificate[1],
            thresholds=self.scenario.thresholds,
            warmup=self.scenario.warmup,
            database=login["database"],
            user=self.servers.user(cell.arm),
            password=login["password"],
        )

    def _measured(self, cell: Cell) -> dict[str, Any]:
        """Sets the link, and measures what it is like now."""
        self.lab.configure(cell.link)
        report = measure(self.lab, pings=_PINGS, pause=0.002, bulk=0).as_json()
        self.lab.configure(cell.link)  # so that which packets are lost does not depend on the pings
        return report

    def _set_routes(self, arm: Arm) -> None:
        """What TCP does on the long link is a property of its routes."""
        options = (*(("rto_min", f"{arm.rto_min * 1000:g}ms") if arm.rto_min else ()),)
        options += (*(("congctl", arm.congestion) if arm.congestion else ()),)
        if self._routes != " ".join(options):
            self._routes = " ".join(options)
            self.lab.hosts.run(Command(host, ("ip", "route", "change", *route, *options)) for host, route in _ROUTES)
        # What TCP has learnt of the last run's link, losses above all, is not for this one.
        self.lab.hosts.run(Command(host, ("ip", "tcp_metrics", "flush", "all")) for host in HOSTS)

    def _store(self, cell: Cell, result: dict[str, Any]) -> None:
        histogram = result["result"].pop("histogram")
        (self.folder / f"{cell.name}.json").write_text(json.dumps(result, indent=1) + "\n")
        # As hdrhistogram's own log has it: deflated, base64.
        (self.folder / f"{cell.name}.hdr").write_text(histogram + "\n")


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
