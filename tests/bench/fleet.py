"""``make bench ARGS=fleet``: fleets of one worker, of two, and of more where there are cores, beside PgBouncer alone
and a fleet of PgBouncers: pgbench -S over TCP, asyncpg over QUIC. And a model of what it costs, from what was measured.

Everything is one machine: the poolers share its cores with PostgreSQL and the load. So two workers on two cores are not
to give more; they are to cost little. What more cores give follows from the CPU that a query takes, of each part.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from bench import asyncpg_load, pgbench
from bench.poolers import Meter, bouncers, gateway

if TYPE_CHECKING:
    from bench.poolers import Pooler
    from bench.site import BenchSite

__all__ = ["CLIENTS", "Figures", "Plan", "Sample", "model", "poolers", "run", "summary", "tables", "worker_counts"]

CLIENTS: Final = (8, 40)
"""Of pgbench."""
SHAPES: Final = ("4x10",)
"""QUIC connections x streams on each."""
MODES: Final = ("simple", "prepared")
CORES: Final = (2, 4, 8, 16)
"""For which the model is asked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``seconds`` are those of each single measurement."""

    rounds: int
    seconds: float
    workers: tuple[int, ...]
    modes: tuple[str, ...] = MODES
    clients: tuple[int, ...] = CLIENTS
    shapes: tuple[str, ...] = SHAPES


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: transactions per second, and microseconds of CPU for each, of each part."""

    tps: float
    pooler_us: float
    other_us: float
    """Of these, those of processes that serve nobody."""
    postgres_us: float
    load_us: float
    shares: tuple[float, ...]
    """Of the CPU that the serving processes have used, by process."""


Figures = dict[str, dict[str, list[Sample]]]
"""By what was run, and by pooler."""


def worker_counts(cores: int) -> tuple[int, ...]:
    """One and two workers, and as many as there are cores."""
    return tuple(sorted({1, 2, cores} if cores > 2 else {1, 2}))


@contextlib.contextmanager
def poolers(site: BenchSite, plan: Plan, program: str | None) -> Iterator[list[Pooler]]:
    """All of them. ``program``: PgBouncer, if there is one."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(gateway(site, count)) for count in plan.workers]
        if program is not None:
            found += [stack.enter_context(bouncers(site, program, count)) for count in plan.workers]
        yield found


def run(plan: Plan, site: BenchSite, each: Sequence[Pooler], say: Callable[[str], None]) -> Figures:
    """Runs all rounds. In each of them all poolers have the same work one after the other, in an order that turns."""
    figures: Figures = {}
    for number in range(plan.rounds):
        order = [*each[number % len(each) :], *each[: number % len(each)]]
        for name, measure in _works(plan, site):
            for pooler in order:
                if name.startswith("quic") and "PgBouncer" in pooler.name:
                    continue
                say(f"round {number + 1} of {plan.rounds}: {name}, {pooler.name}")
                figures.setdefault(name, {}).setdefault(pooler.name, []).append(measure(pooler))
    return figures


def _works(plan: Plan, site: BenchSite) -> Iterator[tuple[str, Callable[[Pooler], Sample]]]:
    for mode in plan.modes:
        for clients in plan.clients:
            yield f"tcp {mode} {clients}", partial(_tcp, site, mode, clients, plan.seconds)
    for shape in plan.shapes:
        yield f"quic {shape}", partial(_quic, site, shape, plan.seconds)


def _tcp(site: BenchSite, mode: str, clients: int, seconds: float, pooler: Pooler) -> Sample:
    meter = Meter(pooler, site.postgres.pid)
    done = pgbench.run(site, pooler.port, mode, meter, seconds=seconds, clients=clients)
    return _sample(meter, done.tps, meter.load_cpu / meter.seconds / done.tps * 1e6)


def _quic(site: BenchSite, shape: str, seconds: float, pooler: Pooler) -> Sample:
    connections, streams = map(int, shape.split("x"))
    meter = Meter(pooler, site.postgres.pid)
    load = asyncpg_load.measure(site, connections, streams, seconds=seconds, port=pooler.port, cpu=meter)
    return _sample(meter, load.qps, load.client_us)


def _sample(meter: Meter, tps: float, load_us: float) -> Sample:
    served = sum(meter.worker_cpu)
    in_us = 1e6 / (meter.seconds * tps)
    return Sample(
        tps=tps,
        pooler_us=(served + meter.other_cpu) * in_us,
        other_us=meter.other_cpu * in_us,
        postgres_us=meter.postgres_cpu * in_us,
        load_us=load_us,
        shares=tuple(cpu / served if served else 0.0 for cpu in meter.worker_cpu),
    )


# -- what it says ------------------------------------------------------------------------------------------------------


def model(pooler_us: float, postgres_us: float, load_us: float, cores: Iterable[int] = CORES) -> dict[str, Any]:
    """What these costs come to on more cores, if each core does what one of these did: with the load on them too, and
    with the load elsewhere. A worker is one core at most, and so is what one alone can give."""
    here = pooler_us + postgres_us + load_us
    beside = pooler_us + postgres_us
    return {
        "one_worker_tps": round(1e6 / pooler_us),
        "by_cores": {
            str(count): {
                "tps_with_load": round(count * 1e6 / here),
                "tps": round(count * 1e6 / beside),
                "workers": max(1, round(count * pooler_us / beside)),
            }
            for count in cores
        },
        "pooler_share": round(pooler_us / beside, 3),
    }


def summary(figures: Figures, cores: int) -> dict[str, Any]:
    """The figures as fleet.json has them: medians of the rounds, and ratios to the first pooler's, round by round."""
    return {name: _work(each, cores) for name, each in figures.items()}


def _work(each: dict[str, list[Sample]], cores: int) -> dict[str, Any]:
    first = next(iter(each.values()))
    found = {name: _pooler(samples, first) for name, samples in each.items()}
    for name, samples in each.items():
        costs = [
            statistics.median(values)
            for values in zip(*((each.pooler_us, each.postgres_us, each.load_us) for each in samples), strict=True)
        ]
        found[name]["model"] = model(*costs) | {"predicted_here": round(cores * 1e6 / sum(costs))}
    return found


def _pooler(samples: Sequence[Sample], first: Sequence[Sample]) -> dict[str, Any]:
    def median(value: Callable[[Sample], float]) -> float:
        return round(statistics.median(map(value, samples)), 1)

    ratios = [round(one.tps / other.tps, 3) for one, other in zip(samples, first, strict=True)]
    return {
        "tps": round(median(lambda each: each.tps)),
        "pooler_us": median(lambda each: each.pooler_us),
        "other_us": median(lambda each: each.other_us),
        "postgres_us": median(lambda each: each.postgres_us),
        "load_us": median(lambda each: each.load_us),
        "shares": [
            round(statistics.median(values), 3) for values in zip(*(each.shares for each in samples), strict=True)
        ],
        "ratio": round(statistics.median(ratios), 3),
        "ratios": ratios,
    }


def tables(found: dict[str, Any]) -> Iterator[Table]:
    """The same for a reader."""
    for name, each in found.items():
        title = f"{name}; us: CPU per transaction; ratio: tps / those of {next(iter(each))}; 16 cores: by the model"
        table = Table(title=title, title_justify="left", title_style="bold")
        columns = ("pooler", "tps", "us", "PG us", "shares", "ratio", "16 cores")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for pooler, row in each.items():
            largest = row["model"]["by_cores"][str(max(CORES))]
            table.add_row(
                pooler,
                f"{row['tps']:,}",
                f"{row['pooler_us']:.1f}",
                f"{row['postgres_us']:.1f}",
                " ".join(f"{share:.2f}" for share in row["shares"]),
                f"[bold]{row['ratio']:.2f}[/]",
                f"{largest['tps']:,}",
            )
        yield table
