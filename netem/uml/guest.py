"""What runs in the guest: the laboratory with real netem.

    python -m netem.uml.guest FOLDER

FOLDER is the only one that the guest shares with the machine: the order is in it,
and there go what is said and the results.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import LabError
from netem.lab import Lab
from netem.measure import measure
from netem.runner import Runner
from netem.scenario import Scenario
from netem.spec import LinkSpec
from netem.uml.modules import load
from netem.uml.order import Order
from netem.uml.said import Checked, Failed, Said, Second, Stored, Up, line
from netem.uml.scale import scaled

if TYPE_CHECKING:
    from netem.scenario import Cell

__all__ = ["main"]

_MODULES = ("ipv6", "veth", "sch_netem", "sch_tbf", "tcp_bbr")
"""aioquic opens IPv6 sockets, even to talk to IPv4 addresses."""


class Guest:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def say(self, said: Said) -> None:
        # Each time anew: what is written then is in the machine's file.
        with (self.folder / "said").open("a") as file:
            file.write(line(said))

    def obey(self, order: Order) -> None:
        """Raises :class:`LabError`."""
        load(_MODULES)
        match order.verb:
            case "check":
                self._check([LinkSpec.from_json(spec) for spec in order.specs])
            case "run":
                self._run(order)

    def _check(self, specs: Sequence[LinkSpec]) -> None:
        with Lab(link="tc") as lab:
            self.say(Up(platform.release()))
            for spec in specs:
                lab.configure(spec)
                self.say(Checked(measure(lab)))

    def _run(self, order: Order) -> None:
        whole = Scenario.load(order.scenario, quick=order.quick)
        scenario = scaled(whole, order.share, order.without).scenario
        with Lab(link="tc") as lab:
            self.say(Up(platform.release()))
            Runner(scenario, lab, command=order.command, folder=self.folder / "results").run(self._tell)

    def _tell(self, cell: Cell, result: dict[str, Any] | None) -> None:
        self.say(Second(cell.name) if result is None else Stored(cell.name))


def main() -> int:
    folder = Path(sys.argv[1])
    guest = Guest(folder)
    try:
        guest.obey(Order.from_json((folder / "order").read_text()))
    except LabError as error:
        guest.say(Failed(str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
