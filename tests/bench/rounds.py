"""The rounds of a benchmark: who runs against whom, in turn, and what each round gave.

Within a round everything runs once, the two sides of a comparison right after each other and in the other order in the
next round, so that a ratio is of two runs that had the same neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from bench import asyncpg_load, own_python, pgbench, quic_echo
from bench.errors import BenchError
from bench.point_select import ASYNCPG

if TYPE_CHECKING:
    from bench.asyncpg_load import Load
    from bench.pgbench import Run
    from bench.pgbouncer import PgBouncer
    from bench.quic_echo import Result
    from bench.site import BenchSite

__all__ = ["COSTS", "MODES", "SHAPES", "VERSIONS", "Figures", "Plan", "Quic", "Tcp", "Versions", "run"]

_A = TypeVar("_A")
_B = TypeVar("_B")
SHAPES = ("1x1", "1x40", "10x40", "50x40")
"""QUIC connections x streams on each."""
MODES = ("simple", "prepared")
COSTS: Final[Mapping[str, bool]] = {"query": False, "connection": True}
"""What is compared between versions of the protocol, and whether pgbench connects anew for each transaction."""
VERSIONS = ("3.0", "3.2")
_VERSION_CLIENTS = 100
"""Clients of pgbench in these."""
_SIZES = quic_echo.Sizes(len(ASYNCPG.request), len(ASYNCPG.answer))


@dataclass(frozen=True, slots=True)
class Quic:
    """A round of one shape."""

    load: Load
    echo: Result

    @property
    def ratio(self) -> float:
        """CPU per query of the gateway, over that per message of the bare echo."""
        return self.load.gateway_us / self.echo.server_us


@dataclass(frozen=True, slots=True)
class Tcp:
    """A round of one mode; ``peer`` is None where there is none, or it cannot do this."""

    pgtrunk: Run
    peer: Run | None

    @property
    def ratio(self) -> float | None:
        """Transactions per second, over those of the peer."""
        return None if self.peer is None else self.pgtrunk.tps / self.peer.tps


@dataclass(frozen=True, slots=True)
class Versions:
    """A round of one cost, to clients that speak 3.0 and to clients that speak 3.2."""

    old: Run
    new: Run

    @property
    def ratio(self) -> float:
        """CPU per transaction at 3.2, over that at 3.0."""
        return self.new.us / self.old.us


@dataclass(slots=True)
class Figures:
    """All rounds, by shape, mode, flow and cost."""

    quic: dict[str, list[Quic]] = field(default_factory=dict)
    tcp: dict[str, list[Tcp]] = field(default_factory=dict)
    own: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, list[Versions]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: ``seconds`` are those of each single measurement."""

    rounds: int
    seconds: float
    shapes: tuple[str, ...] = SHAPES
    modes: tuple[str, ...] = MODES
    costs: tuple[str, ...] = tuple(COSTS)
    own_queries: int = 50_000


def run(plan: Plan, site: BenchSite | None, peer: PgBouncer | None, say: Callable[[str], None]) -> Figures:
    """Runs all rounds; ``site`` may be None where the plan has own queries alone. ``say`` is told what runs."""
    figures = Figures()
    for number in range(plan.rounds):
        where = f"round {number + 1} of {plan.rounds}"
        if plan.own_queries:
            say(f"{where}: own Python")
            for flow, us in own_python.measure(plan.own_queries).items():
                figures.own.setdefault(flow, []).append(us)
        for shape in plan.shapes:
            say(f"{where}: QUIC {shape}")
            assert site is not None
            figures.quic.setdefault(shape, []).append(_quic(site, shape, plan.seconds, ours_first=number % 2 == 0))
        for mode in plan.modes:
            say(f"{where}: TCP {mode}")
            assert site is not None
            figures.tcp.setdefault(mode, []).append(_tcp(site, peer, mode, plan.seconds, ours_first=number % 2 == 0))
        for cost in plan.costs:
            say(f"{where}: protocol {' and '.join(VERSIONS)}, each {cost}")
            assert site is not None
            figures.versions.setdefault(cost, []).append(_versions(site, cost, plan.seconds, old_first=number % 2 == 0))
    return figures


def _quic(site: BenchSite, shape: str, seconds: float, *, ours_first: bool) -> Quic:
    connections, streams = map(int, shape.split("x"))

    def ours() -> Load:
        return asyncpg_load.measure(site, connections, streams, seconds=seconds)

    def echo() -> Result:
        try:
            return quic_echo.measure("stock", connections, streams, seconds=seconds, sizes=_SIZES)
        except (EOFError, TimeoutError) as error:
            raise BenchError(f"the bare echo of {shape} failed: {str(error) or 'its server ended early'}") from error

    return Quic(*_in_turn(ours, echo, ours_first=ours_first))


def _tcp(site: BenchSite, peer: PgBouncer | None, mode: str, seconds: float, *, ours_first: bool) -> Tcp:
    def ours() -> Run:
        return pgbench.run(site, site.port, mode, lambda: site.gateway_cpu, seconds=seconds)

    if peer is None or (mode == "prepared" and not peer.has_statements):
        return Tcp(ours(), None)

    def theirs() -> Run:
        return pgbench.run(site, peer.port, mode, lambda: peer.cpu, seconds=seconds)

    return Tcp(*_in_turn(ours, theirs, ours_first=ours_first))


def _versions(site: BenchSite, cost: str, seconds: float, *, old_first: bool) -> Versions:
    def at(version: str) -> Run:
        return pgbench.run(
            site,
            site.port,
            "extended",
            lambda: site.gateway_cpu,
            seconds=seconds,
            clients=_VERSION_CLIENTS,
            version=version,
            reconnects=COSTS[cost],
        )

    old, new = VERSIONS
    return Versions(*_in_turn(lambda: at(old), lambda: at(new), ours_first=old_first))


def _in_turn(ours: Callable[[], _A], theirs: Callable[[], _B], *, ours_first: bool) -> tuple[_A, _B]:
    if ours_first:
        return ours(), theirs()
    second = theirs()
    return ours(), second
