"""``python -m netem``: the laboratory's commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from netem import keeper
from netem.errors import LabError
from netem.hosts import require_root
from netem.lab import Lab
from netem.measure import measure
from netem.runner import RESULTS, Runner
from netem.scenario import Scenario
from netem.spec import LinkSpec
from netem.stopwatch import Stopwatch
from netem.uml import host as uml

if TYPE_CHECKING:
    from netem.measure import LinkReport, RoundTrips
    from netem.scenario import Cell

    Tell = Callable[[Cell, dict[str, Any] | None], None]
    Seconds = Callable[[Cell], float]

__all__ = ["main"]

_SPEC = (
    "rtt=30,jitter=0,loss=0,burst=0.5:30,rate=100,buffer=375,reorder=0,seed=1; ms, %%, Mbit/s, kB; all but rtt per way"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 with a message where it cannot be done; 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except LabError as error:
        print(f"netem: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("netem: interrupted; all of it is gone", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m netem", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, words in (
        ("up", _up, "make client, gateway and database, and the links between them; they stay until `down`"),
        ("check", _check, "make them, measure the links, and end them"),
    ):
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("--wan", metavar="SPEC", default="", help=f"the long link: {_SPEC}")
        kinds = ["tc", "tun"] if name == "up" else ["tc", "tun", "uml"]
        command.add_argument("--link", choices=kinds, help="how it is made; default: the kernel's netem, if any")
        command.set_defaults(run=run)
    play = commands.add_parser("run", help="run scenarios, and store what came out", description="Runs scenarios.")
    play.add_argument("scenarios", metavar="NAME", nargs="*", help=f"{', '.join(Scenario.names())}; default: all")
    play.add_argument("--quick", action="store_true", help="shorter, with fewer arms: to see that it works")
    play.add_argument(
        "--link", choices=["tc", "tun", "uml"], help="how the link is made; uml: netem in a User-Mode Linux"
    )
    play.add_argument("--output", metavar="FOLDER", type=Path, help="default: results/wan; for --link uml results/uml")
    play.set_defaults(run=_run)
    report = commands.add_parser(
        "report", help="make the report of all that is stored", description="Makes the report."
    )
    report.add_argument("--results", metavar="FOLDER", type=Path, default=RESULTS.parent, help="default: results")
    report.set_defaults(run=_report)
    down = commands.add_parser("down", help="end what `up` made")
    down.set_defaults(run=_down)
    status = commands.add_parser("status", help="say what is up, and how to get inside")
    status.set_defaults(run=_status)
    return parser


def _up(arguments: argparse.Namespace) -> int:
    require_root()
    keeper.up(LinkSpec.parse(arguments.wan), arguments.link)
    return _status(arguments)


def _down(_arguments: argparse.Namespace) -> int:
    require_root()
    print("ended" if keeper.down() else "nothing was up")
    return 0


def _status(_arguments: argparse.Namespace) -> int:
    state = keeper.status()
    if state is None:
        print("nothing is up")
        return 0
    spec = LinkSpec.from_json(state["spec"])
    print(f"up: a link of kind {state['link']} ({state['why']}), {spec.rtt * 1000:g} ms round trip")
    for host, pid in state["hosts"].items():
        print(f"  {host:9} nsenter --net=/proc/{pid}/ns/net")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    spec = LinkSpec.parse(arguments.wan)
    if arguments.link == "uml":
        _print(*uml.check(spec))
        return 0
    with Lab(spec, arguments.link) as lab:
        report = measure(lab)
    _print(report)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """One that cannot be run does not keep the others from it."""
    names = arguments.scenarios
    if names in ([], ["all"]):
        names = Scenario.names()
    if len(names) == 1:
        _run_one(arguments, names[0])
        return 0
    watch = Stopwatch()
    failed = []
    for name in names:
        try:
            _run_one(arguments, name)
        except LabError as error:
            print(f"netem: {name}: {error}", file=sys.stderr)
            failed.append(name)
        print(f"{name}: {watch.lap(name):.0f} s\n", flush=True)
    print(f"{watch.total:.0f} s in all: {watch}" + "".join(f"; {name} has failed" for name in failed))
    return 1 if failed else 0


def _run_one(arguments: argparse.Namespace, name: str) -> None:
    command = "python -m netem " + " ".join(sys.argv[1:])
    folder = arguments.output or RESULTS
    if arguments.link == "uml":
        folder = arguments.output or RESULTS.with_name("uml")
        guest = uml.UmlRunner(name, quick=arguments.quick, command=command, folder=folder)
        _announce(guest.scenario, guest.seconds)
        print(*guest.notes(), sep="\n")
        _follow(guest.scenario, guest.seconds, guest.run)
        return
    scenario = Scenario.load(name, quick=arguments.quick)
    _announce(scenario, scenario.seconds_of)
    with Lab(link=arguments.link) as lab:
        print(f"link: {lab.link.kind}, since {lab.why}")
        _follow(scenario, scenario.seconds_of, Runner(scenario, lab, command=command, folder=folder).run)


def _announce(scenario: Scenario, seconds: Seconds) -> None:
    cells = list(scenario.cells())
    print(f"{scenario.name}: {scenario.question}")
    if scenario.dropped:
        print(f"--quick leaves out {', '.join(scenario.dropped)}")
    print(f"{len(cells)} runs, about {sum(map(seconds, cells)) / 60:.0f} min")


def _follow(scenario: Scenario, seconds: Seconds, run: Callable[[Tell], None]) -> None:
    """``run`` tells of each second and result, which are shown; ``seconds`` is about how long a run takes."""
    cells = list(scenario.cells())
    watch = Stopwatch()
    with _progress() as progress:
        bar = progress.add_task(scenario.name, total=sum(map(seconds, cells)))

        def tell(cell: Cell, result: dict[str, Any] | None) -> None:
            if result is None:
                progress.update(bar, advance=1, description=cell.name)
                return
            progress.update(bar, completed=sum(map(seconds, cells[: cells.index(cell) + 1])))
            found = result["result"]
            progress.console.print(
                f"{cell.setting:22} {cell.arm.name:22} {found['per_second']:8.0f}/s  p50 {found['p50_ms']:8.1f}  "
                f"p99 {found['p99_ms']:8.1f}  p99.9 {found['p99.9_ms']:8.1f} ms  failed {found['failed']}"
                + (f"  unanswered {found['unanswered']}" if found["unanswered"] else "")
                + f"  ({watch.lap(cell.arm.name):.0f} s)"
            )

        run(tell)
    print(f"on the clock, by arm: {watch}")


def _report(arguments: argparse.Namespace) -> int:
    # Imported here: only this command draws.
    from netem.report.make import make

    for path in make(arguments.results):
        print(path)
    return 0


def _progress() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=Console())


def _print(report: LinkReport) -> None:
    print(f"link: {report.kind}, since {report.why}")
    _print_trips("WAN", report.wan)
    _print_trips("LAN", report.lan)
    print(f"one TCP connection: {report.mbit_s_there} Mbit/s there, {report.mbit_s_back} Mbit/s back")


def _print_trips(name: str, trips: RoundTrips) -> None:
    print(
        f"{name}: round trip {trips.median:.2f} ms (p99 {trips.p99:.2f}, from {trips.minimum:.2f} to "
        f"{trips.maximum:.2f}), {trips.lost} of {trips.sent} pings lost"
    )
