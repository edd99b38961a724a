"""A scenario: a question, and the runs that answer it. Read from a TOML file; the order of runs alternates.

    question = "..."
    repetitions = 3
    [[link]]      spec = "loss=1"
    [[load]]      kind = "fixed"  rate = 500  seconds = 20
    [[workload]]  kind = "select"
    [[arm]]       kind = "quic"  sessions = 400  connections = 10  streams = 40
    [thresholds]  p95_ms = 2000  errors = 0.01
    [quick]       repetitions = 1  seconds = 5  arms = ["quic-10x40", ...]

Each arm runs under each link, load and workload, once per repetition; every second repetition in the other order. An
arm with ``links`` or ``loads`` runs under those alone. A setting is named by numbers: ``1.0.500`` is a link that loses
1 %, at 500 queries a second; a link, load or workload may give its part in that itself, as ``name``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from netem import estimate
from netem.errors import LabError
from netem.plan import Arm, ArmKind, Beside, Load, LoadKind, Login, Thresholds, Workload, WorkloadKind, checked_kind
from netem.spec import LinkSpec

__all__ = ["Cell", "NamedLink", "Scenario"]

FOLDER = Path(__file__).parent / "scenarios"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLink:
    """A link as the scenario's file has it, and its part in a setting's name."""

    spec: str
    name: str
    link: LinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of one arm. ``setting`` tells it from others of its arm."""

    arm: Arm
    link: LinkSpec
    load: Load
    workload: Workload
    repetition: int
    setting: str

    @property
    def name(self) -> str:
        """Unique in the scenario, and fit for a file's name."""
        return f"{self.setting}.{self.arm.name}.{self.repetition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    question: str
    arms: tuple[Arm, ...]
    links: tuple[NamedLink, ...]
    loads: tuple[Load, ...]
    workloads: tuple[Workload, ...]
    repetitions: int = 3
    pool_size: int = 20
    max_connections: int = 700
    """Of Postgres."""
    warmup: float = 1.0
    """Seconds of the load before what counts."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    dropped: tuple[str, ...] = ()
    """Arms that a quick run leaves out."""

    @classmethod
    def load(cls, name: str, *, quick: bool) -> Scenario:
        """The scenario of this name. Raises :class:`LabError` where there is none, or its file is wrong."""
        path = FOLDER / f"{name}.toml"
        try:
            data = tomllib.loads(path.read_text())
        except FileNotFoundError:
            known = ", ".join(cls.names())
            raise LabError(f'there is no scenario "{name}"; there are {known}') from None
        except tomllib.TOMLDecodeError as error:
            raise LabError(f"{path}: {error}") from error
        try:
            return cls.read(name, data, quick=quick)
        except (KeyError, TypeError) as error:
            raise LabError(f"{path}: {error}") from error

    @staticmethod
    def names() -> list[str]:
        return sorted(path.stem for path in FOLDER.glob("*.toml"))

    @classmethod
    def read(cls, name: str, data: dict[str, Any], *, quick: bool = False) -> Scenario:
        """The scenario of what a file says. Raises KeyError and TypeError too, where the file is wrong."""
        workloads = data.get("workload", [{}])
        scenario = cls(
            name=name,
            question=data["question"],
            arms=tuple(_arm(each) for each in data["arm"]),
            links=tuple(_link(each) for each in data.get("link", [{"spec": ""}])),
            loads=tuple(_load(each) for each in data["load"]),
            workloads=tuple(_workload(each, only=len(workloads) == 1) for each in workloads),
            repetitions=data.get("repetitions", 3),
            pool_size=data.get("pool_size", 20),
            max_connections=data.get("max_connections", 700),
            warmup=data.get("warmup", 1.0),
            thresholds=Thresholds(**data.get("thresholds", {})),
        )
        return scenario._quick(data.get("quick", {})) if quick else scenario

    def _quick(self, quick: dict[str, Any]) -> Scenario:
        kept, links, loads, workloads = map(quick.get, ("arms", "links", "loads", "workloads"))
        arms = self.arms if kept is None else tuple(arm for arm in self.arms if arm.name in kept)
        seconds = quick.get("seconds")
        return replace(
            self,
            arms=arms,
            dropped=tuple(arm.name for arm in self.arms if arm not in arms),
            links=tuple(each for each in self.links if links is None or each.spec in links),
            repetitions=quick.get("repetitions", 1),
            loads=tuple(
                replace(load, seconds=seconds or load.seconds)
                for load in self.loads
                if loads is None or load.name in loads
            ),
            workloads=tuple(each for each in self.workloads if workloads is None or each.name in workloads),
        )

    def cells(self) -> Iterator[Cell]:
        """All runs, in their order."""
        for repetition in range(1, self.repetitions + 1):
            arms = self.arms if repetition % 2 else self.arms[::-1]
            for link in self.links:
                for load in self.loads:
                    for workload in self.workloads:
                        for arm in arms:
                            if _runs(arm, link, load):
                                yield _cell(arm, link, load, workload, repetition)

    @property
    def seconds(self) -> float:
        """About how long all of it takes."""
        return sum(self.seconds_of(cell) for cell in self.cells())

    def seconds_of(self, cell: Cell) -> float:
        """About how long one run takes, with all that it needs besides its load."""
        return estimate.seconds(cell.arm, cell.load, cell.link, self.warmup)


def _runs(arm: Arm, link: NamedLink, load: Load) -> bool:
    return (not arm.links or link.spec in arm.links) and (not arm.loads or load.name in arm.loads)


def _cell(arm: Arm, link: NamedLink, load: Load, workload: Workload, repetition: int) -> Cell:
    setting = ".".join(filter(None, (link.name, load.name, workload.name)))
    return Cell(
        arm=arm,
        link=replace(link.link, seed=repetition),
        load=load,
        workload=workload,
        repetition=repetition,
        setting=setting or "clean",
    )


def _arm(data: dict[str, Any]) -> Arm:
    checked_kind(data["kind"], ArmKind)
    checked_kind(data.get("login", ""), Login)
    checked_kind(data.get("redundancy", ""), Literal["", "off"])
    data = {"sessions": data.get("connections", 0) * data.get("streams", 0), **data}
    return Arm(**{**data, "links": tuple(data.get("links", ())), "loads": tuple(data.get("loads", ()))})


def _link(data: dict[str, Any]) -> NamedLink:
    spec = data["spec"]
    key, _, value = spec.partition("=")
    if "name" in data:
        name = data["name"]
    elif key == "loss" and "," not in spec:
        name = str(float(value))
    else:
        name = "burst" if key == "burst" and "," not in spec else _fit_for_files(spec)
    return NamedLink(spec=spec, name=name, link=LinkSpec.parse(spec))


def _load(data: dict[str, Any]) -> Load:
    checked_kind(data["kind"], LoadKind)
    number = data.get("rate") or data.get("size") or data.get("users")
    name = f"{number:g}" if number else ""
    return Load(**{"name": name, **data, "think": tuple(data.get("think", (0.0, 0.0)))})


def _workload(data: dict[str, Any], *, only: bool) -> Workload:
    workload = Workload(**data)
    checked_kind(workload.kind, WorkloadKind)
    checked_kind(workload.beside, Beside)
    if workload.name or only:
        return workload
    size = f"-{workload.octets}" if workload.kind == "rows" else ""
    return replace(workload, name=(workload.beside or workload.kind) + size)


def _fit_for_files(spec: str) -> str:
    return spec.replace("=", "-").replace(",", "_").replace(":", "-")
