"""A check, or a scenario, in a guest: what the machine's side does. It boots, follows, and stores what comes out."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem import pgbouncer
from netem.errors import LabError
from netem.hosts import require_root
from netem.runner import made
from netem.scenario import Cell, Scenario
from netem.topology import netem_options
from netem.uml.box import Box
from netem.uml.order import Order
from netem.uml.said import Checked, Failed, Second, Stored, Up
from netem.uml.scale import scaled, share_for, words

if TYPE_CHECKING:
    from netem.measure import LinkReport
    from netem.spec import LinkSpec

__all__ = ["UmlRunner", "amended", "box", "check"]

_ROOT = Path(__file__).resolve().parents[2]
_CHECK = 120.0
"""Seconds for a boot, and half of it for each check: ten times what they take on a machine that is not busy."""
_PATIENCE = 180.0
"""Seconds for a boot and the servers; for each run, beyond twice its load, a third of it."""
_PASSED = ("PYTHONPATH",)
"""What of our environment is the guest's too."""
_OVERHEAD = 15.0
"""Seconds that a run takes besides its load, in a guest."""


def check(*specs: LinkSpec) -> list[LinkReport]:
    """Measures links of real netem, one after the other in one guest. Raises :class:`LabError`."""
    for spec in specs:
        _possible(spec)
    reports = []
    with box() as guest:
        guest.boot(Order(verb="check", specs=tuple(spec.as_json() for spec in specs)))
        kernel = "?"
        for said in guest.follow(_CHECK + _CHECK / 2 * len(specs)):
            match said:
                case Up(kernel):
                    pass
                case Checked(found):
                    reports.append(replace(found, kind="uml", why=_why(kernel)))
                case Failed(why):
                    raise LabError(f"in the guest: {why}")
                case _:
                    pass
        code = guest.code()
        if code or len(reports) < len(specs):
            raise LabError(f"the check in the guest ended with exit code {code}: {guest.last_words()}")
    return reports


class UmlRunner:
    """One scenario in a guest: as `netem.runner.Runner`, but that it brings its laboratory, and scales the scenario."""

    def __init__(self, name: str, *, quick: bool, command: str, folder: Path) -> None:
        without = _missing()
        for cell in (whole := Scenario.load(name, quick=quick)).cells():
            _possible(cell.link)
        share = share_for(whole)
        self._scaled = scaled(whole, share, without)
        self.folder = folder / name
        self.kernel = ""
        """The guest's, as soon as it is up."""
        self._order = Order(
            verb="run", scenario=name, quick=quick, share=share, without=tuple(without), command=command
        )

    @property
    def scenario(self) -> Scenario:
        """As it is run."""
        return self._scaled.scenario

    @staticmethod
    def seconds(cell: Cell) -> float:
        """About how long a run takes."""
        return cell.load.seconds + _OVERHEAD

    def notes(self) -> list[str]:
        """What is different from the scenario's file, in words."""
        notes = [words(self._order.share)]
        if self._scaled.twins:
            notes.append(f"left out, since they would now be the same as others: {', '.join(self._scaled.twins)}")
        if self._scaled.missing:
            notes.append(f"left out without PgBouncer (apt-get install pgbouncer): {', '.join(self._scaled.missing)}")
        return notes

    def run(self, tell: Callable[[Cell, dict[str, Any] | None], None]) -> None:
        """All cells; ``tell`` hears of each second (None) and of each cell's result. Raises :class:`LabError`."""
        cells = {cell.name: cell for cell in self.scenario.cells()}
        self.folder.mkdir(parents=True, exist_ok=True)
        limit = _PATIENCE + sum(cell.load.seconds * 2 + _PATIENCE / 3 for cell in cells.values())
        with box() as guest:
            guest.boot(self._order)
            for said in guest.follow(limit):
                match said:
                    case Up(kernel):
                        self.kernel = kernel
                    case Second(name):
                        tell(cells[name], None)
                    case Stored(name):
                        tell(cells[name], self._store(guest.folder / "results" / self.scenario.name, name))
                    case Failed(why):
                        raise LabError(f"in the guest: {why}")
                    case Checked():
                        pass
            if code := guest.code():
                raise LabError(f"the scenario in the guest ended with exit code {code}: {guest.last_words()}")

    def _store(self, source: Path, name: str) -> dict[str, Any]:
        """Takes the files of one run over, with what is to be known of the machine around the guest."""
        stored = json.loads((source / f"{name}.json").read_text())
        result = amended(stored, self.kernel, self._order, made(self._order.command, datetime.now(UTC)))
        (self.folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for other in source.glob("*"):
            if other.name.startswith(f"{name}.") and other.suffix != ".json":
                shutil.copyfile(other, self.folder / other.name)
        return result


def amended(stored: dict[str, Any], kernel: str, order: Order, machine: dict[str, Any]) -> dict[str, Any]:
    """What is stored of a run in a guest: ``machine`` is what `made` says outside, the guest's own words are in it."""
    inside = stored["made"]
    guest = {"kind": "User-Mode Linux", **{key: inside[key] for key in ("kernel", "cores", "load_average")}}
    return {
        **stored,
        "made": {**machine, "date": inside["date"], "guest": guest},
        "link": {**stored["link"], "kind": "uml", "why": _why(kernel)},
        "scaled": {"share": order.share, "words": words(order.share)},
    }


def _possible(spec: LinkSpec) -> None:
    """Raises :class:`LabError` for what netem cannot do: better now than in the guest."""
    for direction in (spec.there, spec.back):
        netem_options(direction)


def _why(kernel: str) -> str:
    return f"asked for: netem of User-Mode Linux {kernel}"


def _missing() -> Collection[str]:
    """The kinds of arms that nothing serves here."""
    return () if pgbouncer.program() else ("pgbouncer", "pgbouncer-tls")


def box() -> Box:
    """One that holds what the program here needs; it is closed by a `with`. Raises :class:`LabError` without root."""
    require_root()
    environment = {name: value for name in _PASSED if (value := os.environ.get(name))}
    if program := pgbouncer.program():
        environment["PGBOUNCER"] = program
    return Box(Path(sys.executable), _ROOT, environment=environment)
