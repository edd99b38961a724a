"""``python -m netem``: the laboratory's commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from netem import keeper
from netem.errors import LabError
from netem.hosts import require_root
from netem.lab import Lab
from netem.measure import measure
from netem.spec import LinkSpec

if TYPE_CHECKING:
    from netem.measure import LinkReport, RoundTrips

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
        command.add_argument(
            "--link", choices=["tc", "tun"], help="how it is made; default: the kernel's netem, if any"
        )
        command.set_defaults(run=run)
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
    with Lab(LinkSpec.parse(arguments.wan), arguments.link) as lab:
        report = measure(lab)
    _print(report)
    return 0


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
