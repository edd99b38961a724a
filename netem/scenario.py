"""A scenario: a question, and the runs that answer it. Read from a TOML file; the order of runs alternates.

    question = "..."
    repetitions = 3
    [[link]]      spec = "loss=1"
    [[load]]      kind = "fixed"  rate = 500  seconds = 20
    [[workload]]  kind = "select"
    [[arm]]       kind = "quic"  sessions = 400  connections = 10  streams = 40
    [quick]       repetitions = 1  seconds = 5  arms = ["quic-10x40", ...]

Each arm runs under each link, load and workload, once per repetition; every second repetition in the other order.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from netem.errors import LabError
from netem.plan import Arm, ArmKind, Load, LoadKind, Workload, WorkloadKind, checked_kind
from netem.spec import LinkSpec

__all__ = ["OVERHEAD", "Cell", "Scenario"]

FOLDER = Path(__file__).parent / "scenarios"


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
    links: tuple[tuple[str, LinkSpec], ...]
    loads: tuple[Load, ...]
    workloads: tuple[Workload, ...]
    repetitions: int = 3
    pool_size: int = 20
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
            scenario = cls._read(name, data)
            return scenario._quick(data.get("quick", {})) if quick else scenario
        except (KeyError, TypeError) as error:
            raise LabError(f"{path}: {error}") from error

    @staticmethod
    def names() -> list[str]:
        return sorted(path.stem for path in FOLDER.glob("*.toml"))

    @classmethod
    def _read(cls, name: str, data: dict[str, Any]) -> Scenario:
        specs = [each["spec"] for each in data.get("link", [{"spec": ""}])]
        return cls(
            name=name,
            question=data["question"],
            arms=tuple(_arm(each) for each in data["arm"]),
            links=tuple((spec, LinkSpec.parse(spec)) for spec in specs),
            loads=tuple(_load(each) for each in data["load"]),
            workloads=tuple(_workload(each) for each in data.get("workload", [{}])),
            repetitions=data.get("repetitions", 3),
            pool_size=data.get("pool_size", 20),
        )

    def _quick(self, quick: dict[str, Any]) -> Scenario:
        kept = quick.get("arms")
        arms = self.arms if kept is None else tuple(arm for arm in self.arms if arm.name in kept)
        seconds = quick.get("seconds")
        return replace(
            self,
            arms=arms,
            dropped=tuple(arm.name for arm in self.arms if arm not in arms),
            links=self.links[: quick.get("links", len(self.links))],
            repetitions=quick.get("repetitions", 1),
            loads=tuple(replace(load, seconds=seconds or load.seconds) for load in self.loads),
        )

    def cells(self) -> Iterator[Cell]:
        """All runs, in their order."""
        for repetition in range(1, self.repetitions + 1):
            arms = self.arms if repetition % 2 else self.arms[::-1]
            for text, link in self.links:
                for load in self.loads:
                    for workload in self.workloads:
                        setting = _setting(text, load, workload, len(self.loads), len(self.workloads))
                        for arm in arms:
                            yield Cell(
                                arm=arm,
                                link=replace(link, seed=repetition),
                                load=load,
                                workload=workload,
                                repetition=repetition,
                                setting=setting,
                            )

    @property
    def seconds(self) -> float:
        """About how long all of it takes."""
        return sum(cell.load.seconds + OVERHEAD for cell in self.cells())


OVERHEAD = 6.0
"""Seconds that a run takes besides its load: sessions, warm-up, and the link's measurement."""


def _arm(data: dict[str, Any]) -> Arm:
    checked_kind(data["kind"], ArmKind)
    data = {"sessions": data.get("connections", 0) * data.get("streams", 0), **data}
    return Arm(**data)


def _load(data: dict[str, Any]) -> Load:
    checked_kind(data["kind"], LoadKind)
    return Load(**{**data, "think": tuple(data.get("think", (0.0, 0.0)))})


def _workload(data: dict[str, Any]) -> Workload:
    workload = Workload(**data)
    checked_kind(workload.kind, WorkloadKind)
    return workload


def _setting(link: str, load: Load, workload: Workload, loads: int, workloads: int) -> str:
    parts = [link.replace("=", "-").replace(",", "_").replace(":", "-").replace(".", "p") or "clean"]
    if loads > 1:
        parts.append(f"{load.kind}-{load.rate or load.size or load.users:g}")
    if workloads > 1:
        parts.append(f"{workload.kind}-{workload.octets}" if workload.kind in ("rows", "bulk") else workload.kind)
    return ".".join(parts)
