"""The poolers that the fleet's benchmark compares, all in front of one PostgreSQL: gateways and PgBouncers, one process
or several. All of them stay up, and one has work at a time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.errors import BenchError
from bench.machine import cpu_seconds
from bench.pgbouncer import PgBouncer, free_port

if TYPE_CHECKING:
    from bench.site import BenchSite

__all__ = ["Meter", "Pooler", "bouncers", "gateway"]

_START: Final = 60.0
_STOP: Final = 20.0


@dataclass(frozen=True, slots=True)
class Pooler:
    """``pids``: its processes that serve sessions; ``others``: those that do not, as a supervisor."""

    name: str
    port: int
    pids: tuple[int, ...]
    others: tuple[int, ...] = ()


@dataclass(slots=True)
class _Moment:
    at: float
    pooler: list[float]
    others: float
    postgres: dict[int, float]
    load: float


@dataclass(slots=True)
class Meter:
    """Called at either end of a measurement, it notes what CPU all have used by then -> that of the pooler.

    Of processes of PostgreSQL's that come or go in between only a part is seen; a pool keeps its backends.
    """

    pooler: Pooler
    postmaster: int
    _moments: list[_Moment] = field(default_factory=list)

    def __call__(self) -> float:
        moment = _Moment(
            time.perf_counter(),
            [cpu_seconds(pid) for pid in self.pooler.pids],
            sum(cpu_seconds(pid) for pid in self.pooler.others),
            {pid: cpu for pid in (self.postmaster, *children(self.postmaster)) if (cpu := _cpu(pid)) is not None},
            sum(_cpu(pid) or 0.0 for pid in children(os.getpid()) if _name(pid) == "pgbench"),
        )
        self._moments.append(moment)
        return sum(moment.pooler) + moment.others

    @property
    def seconds(self) -> float:
        """Between the last two calls; the same for what follows."""
        return self._moments[-1].at - self._moments[-2].at

    @property
    def worker_cpu(self) -> list[float]:
        """Seconds of CPU of each process that serves."""
        return [
            after - before for before, after in zip(self._moments[-2].pooler, self._moments[-1].pooler, strict=True)
        ]

    @property
    def other_cpu(self) -> float:
        """Of those that do not."""
        return self._moments[-1].others - self._moments[-2].others

    @property
    def postgres_cpu(self) -> float:
        before = self._moments[-2].postgres
        return sum(cpu - before.get(pid, 0.0) for pid, cpu in self._moments[-1].postgres.items())

    @property
    def load_cpu(self) -> float:
        """Of pgbench."""
        return self._moments[-1].load - self._moments[-2].load


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return sorted(found)


def _cpu(pid: int) -> float | None:
    try:
        return cpu_seconds(pid)
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def gateway(site: BenchSite, workers: int) -> Iterator[Pooler]:
    """A gateway of that many workers, set up as the site's own."""
    port = free_port()
    place = site.folder / f"workers{workers}"
    place.mkdir()
    text = (site.folder / "gateway.ini").read_text()
    for key, value in (("listen_port", port), ("unix_socket_dir", place), ("logfile", place / "log")):
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    ini = place / "gateway.ini"
    ini.write_text(f"{text}workers = {workers}\n")
    with (place / "out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgtrunk_gateway", "-q", str(ini)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await_start(process, place)
        pids = [process.pid] if workers == 1 else children(process.pid)
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        yield Pooler(name, port, tuple(pids), () if workers == 1 else (process.pid,))
    finally:
        for signum in (signal.SIGQUIT, signal.SIGKILL):
            process.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP)
                break


def _await_start(process: subprocess.Popen[bytes], place: Path) -> None:
    deadline = time.monotonic() + _START
    log = place / "log"
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and "process up" in log.read_text(errors="replace"):
            return
        time.sleep(0.02)
    raise BenchError(f"the gateway did not start (exit code {process.poll()}): {(place / 'out').read_text()}")


@contextlib.contextmanager
def bouncers(site: BenchSite, program: str, count: int) -> Iterator[Pooler]:
    """PgBouncer, or ``count`` of them that share a port and pass cancels on to each other, as its documentation has it.

    Each of several has its part of the pool: PgBouncer's limits are those of a process.
    """
    port = free_port()
    with contextlib.ExitStack() as stack:
        each = [stack.enter_context(PgBouncer(program)) for _ in range(count)]
        for number, one in enumerate(each, 1):
            one.start(site, port, _peering(number, each, site.pool_size) if count > 1 else "")
        yield Pooler(each[0].name if count == 1 else f"{count} PgBouncers", port, tuple(one.pid for one in each))


def _peering(number: int, each: Sequence[PgBouncer], pool_size: int) -> str:
    own = [f"so_reuseport = 1\npeer_id = {number}\nunix_socket_dir = {each[number - 1].folder}\n"]
    own.append(f"default_pool_size = {max(1, pool_size // len(each))}\n[peers]\n")
    return "".join([*own, *(f"{peer} = host={one.folder}\n" for peer, one in enumerate(each, 1))])
