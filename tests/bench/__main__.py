"""``make bench``: CPU and throughput of the gateway and the client, beside a bare QUIC echo and PgBouncer.

Over QUIC, asyncpg sessions with prepared point selects; over TCP, pgbench -S, and what a query and a connection cost at
protocol 3.0 and 3.2; and the gateway's own Python in process. ``make bench ARGS=fleet`` compares fleets instead.
All in one temporary folder and on the loopback interface; whatever is started ends with it.
"""

# ruff: noqa: E402 - modules are found only once the path is set
from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Not the folder of this file, which comes first otherwise: our modules are `bench.` something.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from rich.console import Console

from bench import fleet, machine, pgbouncer, report
from bench.errors import BenchError
from bench.rounds import Figures, Plan, run
from bench.site import BenchSite
from pgtrunk.errors import PgtrunkError

RESULTS = Path(__file__).resolve().parents[2] / "results" / "bench.json"
FLEET_RESULTS = RESULTS.with_name("fleet.json")
ROUNDS, SECONDS = 5, 3.0
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 with a message where something failed, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _terminated)
    console = Console()
    try:
        (_bench_fleets if arguments.what == "fleet" else _bench)(console, arguments)
    except (BenchError, PgtrunkError) as error:
        Console(stderr=True).print(f"bench: {error}", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped and removed")
        return _INTERRUPTED
    return 0


def _terminated(signum: int, _frame: object) -> None:
    # As an exception, so that everything is stopped on the way out.
    sys.exit(128 + signum)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="?", choices=("fleet",), help="fleets of workers, beside fleets of PgBouncers")
    parser.add_argument("--rounds", type=_positive, help=f"how often everything runs (default: {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works, not for figures")
    parser.add_argument("--only", choices=("own", "quic", "tcp", "protocol"), help="that part alone")
    parser.add_argument(
        "--output",
        type=Path,
        help="where the figures go (default: results/bench.json or fleet.json, but nowhere with --quick or --only)",
    )
    parser.epilog = "PGBOUNCER=/path/to/pgbouncer in the environment names the PgBouncer to compare with."
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = Plan(
        rounds=arguments.rounds or (1 if arguments.quick else ROUNDS), seconds=1.0 if arguments.quick else SECONDS
    )
    if arguments.only in ("own", "tcp", "protocol"):
        plan = replace(plan, shapes=())
    if arguments.only in ("own", "quic", "protocol"):
        plan = replace(plan, modes=())
    if arguments.only in ("own", "quic", "tcp"):
        plan = replace(plan, costs=())
    if arguments.only in ("quic", "tcp", "protocol"):
        plan = replace(plan, own_queries=0)
    return plan


def _look(console: Console) -> machine.Quiet:
    with console.status("looking whether the machine is quiet"):
        quiet = machine.look()
    if not quiet:
        console.print(
            f"[yellow]the machine is not quiet ({quiet}): figures of this run are not for publication[/]",
            highlight=False,
            soft_wrap=True,
        )
    return quiet


def _bench_fleets(console: Console, arguments: argparse.Namespace) -> None:
    if arguments.only:
        raise BenchError("--only is for the other benchmark")
    about = machine.facts()
    workers = fleet.worker_counts(int(about["cores"]))
    plan = fleet.Plan(arguments.rounds or ROUNDS, SECONDS, workers)
    if arguments.quick:
        plan = fleet.Plan(arguments.rounds or 1, 1.0, workers, modes=("simple",), clients=(8,))
    program = pgbouncer.find()
    quiet = _look(console)
    if program is None:
        console.print(f"[yellow]{pgbouncer.NOT_FOUND}[/]; the rest is measured", highlight=False, soft_wrap=True)
    with _site(console) as site:
        with fleet.poolers(site, plan, program) as poolers, console.status("") as status:
            figures = fleet.run(plan, site, poolers, status.update)
        postgres = site.server_version
    found = fleet.summary(figures, int(about["cores"]))
    for table in fleet.tables(found):
        console.print(table)
    said = _about(plan.rounds, plan.seconds, quiet, pgbouncer.name_of(program), postgres, _command(arguments))
    _write(console, FLEET_RESULTS, arguments, said | {"figures": found})


def _bench(console: Console, arguments: argparse.Namespace) -> None:
    plan = _plan(arguments)
    program = pgbouncer.find() if plan.modes else None
    quiet = _look(console)
    if plan.modes and program is None:
        console.print(f"[yellow]{pgbouncer.NOT_FOUND}[/]; the rest is measured", highlight=False, soft_wrap=True)
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(_site(console)) if plan.shapes or plan.modes or plan.costs else None
        peer = stack.enter_context(pgbouncer.PgBouncer(program)) if program is not None else None
        if peer is not None and site is not None:
            peer.start(site)
            if not peer.has_statements:
                console.print(
                    f"{peer.name} has no prepared statements in transaction pooling: those are measured alone. "
                    "1.21 and later have; PGBOUNCER=/path names one",
                    highlight=False,
                    soft_wrap=True,
                )
        with console.status("") as status:
            figures = run(plan, site, peer, status.update)
        postgres = None if site is None else site.server_version
    name = None if peer is None else peer.name
    _report(console, arguments, figures, _about(plan.rounds, plan.seconds, quiet, name, postgres, _command(arguments)))


@contextlib.contextmanager
def _site(console: Console) -> Iterator[BenchSite]:
    with BenchSite() as site:
        with console.status("starting PostgreSQL and the gateway"):
            site.open()
        yield site


def _about(
    rounds: int, seconds: float, quiet: machine.Quiet, peer: str | None, postgres: str | None, command: str
) -> dict[str, Any]:
    return {
        "command": command,
        "commit": machine.commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "rounds": rounds,
        "seconds": seconds,
        "machine": machine.facts(),
        "quiet": {"is_quiet": bool(quiet), "load_average": quiet.load, "busy_cores": quiet.busy},
        "peer": peer,
        "postgres": postgres,
    }


def _command(arguments: argparse.Namespace) -> str:
    """What was typed, without paths."""
    words = [arguments.what] if arguments.what else []
    words += ["--quick"] if arguments.quick else []
    words += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    words += [f"--only {arguments.only}"] if arguments.only else []
    command = f"make bench ARGS='{' '.join(words)}'" if words else "make bench"
    return f"PGBOUNCER=... {command}" if os.environ.get("PGBOUNCER") else command


def _report(console: Console, arguments: argparse.Namespace, figures: Figures, about: dict[str, Any]) -> None:
    found = report.summary(figures)
    for table in report.tables(found, about["peer"]):
        console.print(table)
    console.print(f"medians of {about['rounds']} rounds of {about['seconds']:g} s", highlight=False)
    _write(console, RESULTS, arguments, about | found)


def _write(console: Console, usual: Path, arguments: argparse.Namespace, said: dict[str, Any]) -> None:
    output = arguments.output
    if output is None and not (arguments.quick or arguments.only):
        output = usual
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(said, indent=2) + "\n")
        console.print(f"written to {output}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
