"""The machine: what it is, whether it is quiet, and the CPU time of its processes.

Nothing that names it: no host name, no paths.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

__all__ = ["Quiet", "commit", "cpu_seconds", "facts", "look"]

_ROOT = Path(__file__).parents[2]
_BUSY = 0.1
"""Cores that may work on other things while figures are taken."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Quiet:
    """What else went on before the start: ``load`` is the load average of a minute, ``busy`` the cores in use now."""

    load: float
    busy: float

    def __bool__(self) -> bool:
        # The load average falls slowly: what has just ended is still in it, and does no harm.
        return self.busy < _BUSY

    def __str__(self) -> str:
        return f"{self.busy:.2f} cores busy, load average {self.load:.2f}"


def look(seconds: float = 2.0) -> Quiet:
    """Watches the machine for a while, in which the caller does nothing."""
    before, began = _busy_seconds(), time.perf_counter()
    time.sleep(seconds)
    busy = (_busy_seconds() - before) / (time.perf_counter() - began)
    return Quiet(round(os.getloadavg()[0], 2), round(max(0.0, busy), 2))


def _busy_seconds() -> float:
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICKS


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads together. Steps of 10 ms, so look at a second at least."""
    # "pid (name) state ppid ...", where the name may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def facts() -> dict[str, str | int]:
    """The kind of machine, and the versions of what the figures depend on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("aioquic", "asyncpg", "uvloop")},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def commit() -> str | None:
    """The commit that is measured, "+" behind it where files differ from it; None outside a git repository."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=_ROOT, capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "client", "gateway", "tests/bench")
        return git("rev-parse", "--short=12", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
