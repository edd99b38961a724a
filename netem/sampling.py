"""What processes, hosts and link use while a run goes on, each second: CPU, memory, sockets, packets, queues.

From /proc, and from the link's own counters. Counters count from the start of the sampling, all but those of `NOW`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["NOW", "Sampler", "Usage", "network", "since", "usage"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_COUNTERS = {
    "Udp": ("InDatagrams", "OutDatagrams", "RcvbufErrors"),
    "Tcp": ("InSegs", "OutSegs", "RetransSegs", "CurrEstab"),
}
NOW = ("Tcp.CurrEstab", "Udp.sockets", "Udp.queue")
"""What is a number of the moment: connections, UDP sockets, and octets that wait in them to be read."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process, or of a tree of them: seconds of CPU in all, megabytes of memory now."""

    cpu_s: float
    rss_mb: float


def usage(pid: int) -> Usage:
    """Of ``pid`` and its children, as Postgres has them; zero for one that is gone."""
    cpu = rss = 0.0
    for each in (pid, *_children(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Fields 14 to 17: of the process, and of children that have ended and were waited for.
        cpu += sum(map(int, fields[11:15])) / _TICKS
        rss += int(fields[21]) * _PAGE / 1e6
    return Usage(round(cpu, 3), round(rss, 1))


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(each) for each in task.read_text().split()]
        except OSError:
            continue
    return found


def network(pid: int) -> dict[str, int]:
    """Counters of the network namespace of a process."""
    lines = Path(f"/proc/{pid}/net/snmp").read_text().splitlines()
    counters = {}
    for head, values in zip(lines[::2], lines[1::2], strict=True):
        name, _, names = head.partition(":")
        row = dict(zip(names.split(), values.partition(":")[2].split(), strict=True))
        for key in _COUNTERS.get(name, ()):
            counters[f"{name}.{key}"] = int(row[key])
    tables = (Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("udp", "udp6"))
    sockets = [line.split() for table in tables for line in table]
    counters["Udp.sockets"] = len(sockets)
    counters["Udp.queue"] = sum(int(row[4].partition(":")[2], 16) for row in sockets)
    return counters


def since(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What counters have grown by; those of `NOW` as they are."""
    return {key: value if key in NOW else value - before[key] for key, value in now.items()}


@dataclass(slots=True)
class Sampler:
    """Samples ``pids`` and ``hosts`` each second between :meth:`start` and :meth:`stop`, in a thread.

    ``link`` gives the link's counters; it is called in that thread.
    """

    pids: Mapping[str, int]
    hosts: Mapping[Any, int]
    link: Callable[[], dict[str, Any]] | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _before: dict[str, Usage] = field(default_factory=dict)
    _network: dict[str, dict[str, int]] = field(default_factory=dict)

    def start(self) -> None:
        self._before = {name: usage(pid) for name, pid in self.pids.items()}
        self._network = {host: network(pid) for host, pid in self.hosts.items()}
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(1.0):
            sample: dict[str, Any] = {"at": round(time.monotonic() - begin, 2)}
            for name, pid in self.pids.items():
                now = usage(pid)
                cpu = round(now.cpu_s - self._before[name].cpu_s, 3)
                sample[name] = {"cpu_s": cpu, "rss_mb": now.rss_mb}
            sample["network"] = self._traffic()
            if self.link is not None:
                sample["link_counters"] = self.link()
            self.samples.append(sample)

    def _traffic(self) -> dict[str, dict[str, int]]:
        return {str(host): since(self._network[host], network(pid)) for host, pid in self.hosts.items()}

    def stop(self) -> dict[str, Any]:
        """What was used between start and stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        after = {name: usage(pid) for name, pid in self.pids.items()}
        peak = {name: max([each[name]["rss_mb"] for each in self.samples] + [after[name].rss_mb]) for name in self.pids}
        return {
            "cpu_s": {name: round(after[name].cpu_s - self._before[name].cpu_s, 3) for name in self.pids},
            "rss_mb": peak,
            "network": self._traffic(),
            "samples": self.samples,
        }
