"""One run as it goes on: the client's process, and whatever is watched meanwhile, from the end of its warm-up on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem import congestion, console
from netem.competitor import Competitor
from netem.errors import LabError
from netem.sampling import Sampler
from netem.stalls import ANY_FLOW, Drop, Late, stalls

if TYPE_CHECKING:
    from netem.console import PoolerStats
    from netem.lab import Lab
    from netem.plan import ArmKind, Run

__all__ = ["Play", "growth", "per_query"]

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE = 180.0
"""Seconds beyond the load that a client may take: sessions, warm-up, what is under way at the end."""
_TOTALS = {"received", "octets", "lost", "overflowed", "sent", "late_sum", "packets", "bytes", "drops"}
"""Counters of links that only grow."""
_OWN_SOCKETS: tuple[ArmKind, ...] = ("direct", "pgbouncer", "pgbouncer-tls", "tcp", "tls", "quic")
"""Arms whose sessions leave by sockets of the client's own."""
_POOLED: tuple[ArmKind, ...] = ("pgbouncer", "pgbouncer-tls", "tcp", "tls", "quic", "sidecar", "mux")


@dataclass(slots=True)
class Play:
    """The client of one run, from its start to its result. Whoever makes one also calls :meth:`close`."""

    lab: Lab
    name: str
    seconds: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    used: dict[str, Any] = field(default_factory=dict)
    carried: dict[str, Any] = field(default_factory=dict)
    """By the link."""
    _client: subprocess.Popen[str] = field(init=False)
    _before: dict[str, Any] = field(default_factory=dict)
    _begin: float = 0.0
    _figures: dict[str, Any] = field(default_factory=dict)
    _stats: PoolerStats | None = None
    _competitor: Competitor | None = None
    _sampler: Sampler = field(init=False)

    def start(self) -> None:
        """It loads what it needs, and waits for what to do."""
        pipe = subprocess.PIPE
        argv = [sys.executable, "-m", "netem.client"]
        self._client = self.lab.hosts.popen("client", argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=str(_ROOT))

    def play(self, run: Run, pids: dict[str, int], pooler: tuple[str, int], second: Callable[[], None]) -> None:
        """Until the result is there. ``pids`` are sampled; ``pooler`` is where its console listens."""
        client = self._client
        assert client.stdout is not None and client.stderr is not None
        self._say(json.dumps(run.as_json()))
        link = {} if self.lab.link.pid is None else {"link": self.lab.link.pid}
        self._sampler = Sampler({**pids, "client": client.pid, **link}, self.lab.hosts.pids, self.lab.link.counters)
        deadline = time.monotonic() + run.load.seconds + _PATIENCE
        for said in _lines(client.stdout):
            if "ready" in said:
                self._ready(run, pooler)
                self._say("go")
            elif "second" in said:
                self.seconds.append(said["second"])
                second()
            elif "over" in said:
                self._over(run, pooler)
            elif "result" in said:
                if not self.used:
                    self._over(run, pooler)
                self._finish(run, said["result"])
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: the client took too long")
        if not self.result:
            raise LabError(f"{self.name}: the client failed: {_last_words(client.stderr.read())}")

    def close(self) -> None:
        """Ends what still runs."""
        if self._client.poll() is None:
            try:
                self._client.wait(10 if self.result else 0)
            except subprocess.TimeoutExpired:
                self._client.kill()
                self._client.wait(10)
        for stream in (self._client.stdin, self._client.stdout, self._client.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        if self._competitor is not None:
            self._competitor.close()

    def _say(self, line: str) -> None:
        assert self._client.stdin is not None
        # Where it has died, its last words are more to the point than that it does not listen.
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._client.stdin, flush=True)

    # -- the two ends of the load

    def _ready(self, run: Run, pooler: tuple[str, int]) -> None:
        """Whatever takes CPU comes ahead of the load."""
        port = run.port if run.arm.kind in _OWN_SOCKETS else None
        self._figures["tcp"] = congestion.check(run.arm, congestion.sockets(self.lab.hosts, port))
        self._stats = self._ask_pooler(run, pooler)
        if run.arm.competing:
            self._competitor = Competitor(self.lab.hosts, run.load.seconds)
        self._before = self.lab.link.counters()
        self._sampler.start()
        self._begin = time.monotonic()

    def _over(self, run: Run, pooler: tuple[str, int]) -> None:
        self.used = self._sampler.stop()
        self.carried = growth(self._before, self.lab.link.counters())
        stats = self._ask_pooler(run, pooler)
        if stats is not None and self._stats is not None:
            from_asking = run.arm.kind in ("pgbouncer", "pgbouncer-tls")
            self._figures.update(stats.figures(self._stats, from_asking=from_asking))

    def _finish(self, run: Run, result: dict[str, Any]) -> None:
        late, ports = result.pop("late", []), result.pop("ports", [])
        if run.late_after:
            self._figures.update(self._stalls(run, late, ports))
        if self._competitor is not None:
            self._figures.update(self._competitor.figures())
        self._figures.update(per_query(self.used["network"]["client"], result["done"]))
        self.result = result | self._figures

    def _ask_pooler(self, run: Run, pooler: tuple[str, int]) -> PoolerStats | None:
        """Only where transactions are the question: the console costs a process at either end of the load."""
        if run.arm.kind not in _POOLED or run.workload.kind not in ("transaction", "cte", "function"):
            return None
        host, port = pooler
        login = {"user": run.user, "password": run.password, "database": run.database}
        return console.ask(self.lab.hosts, host, port, **login)

    def _stalls(self, run: Run, late: list[list[float]], ports: list[int]) -> dict[str, float]:
        """Nothing where the link does not say what it dropped, or sessions have no sockets that could be told apart."""
        dropped = self.lab.link.drops()
        if dropped is None or run.arm.kind == "sidecar":
            return {}
        own = run.arm.kind in _OWN_SOCKETS
        drops = [
            Drop(at, int(port) if own else ANY_FLOW)
            for way in ("there", "back")
            for at, port in dropped[way]
            if at >= self._begin
        ]
        answers = (
            Late(int(session), ports[int(session)] if own else ANY_FLOW, sent, answered)
            for session, sent, answered in late
        )
        return stalls(drops, answers).figures()


def per_query(client: Mapping[str, int], done: int) -> dict[str, float]:
    """What the client's host sent and received for each answer: datagrams, of QUIC, and segments, of TCP."""
    names = {
        "datagrams_sent_per_query": "Udp.OutDatagrams",
        "datagrams_received_per_query": "Udp.InDatagrams",
        "segments_sent_per_query": "Tcp.OutSegs",
        "segments_received_per_query": "Tcp.InSegs",
    }
    return {name: round(client[key] / done, 4) for name, key in names.items()} if done else {}


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
