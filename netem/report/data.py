"""What is stored of the runs, and which of them are repetitions of one another. Reads files; computes no figures.

What a run does not say is absent, and taken so; what it says wrongly raises :class:`LabError` with the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from netem.errors import LabError
from netem.report.latencies import Latencies

__all__ = ["Group", "Stored", "groups", "read"]


@dataclass(frozen=True, eq=False)
class Stored:
    """One run as it is stored, in ``file``, a path from the folder of results."""

    file: str
    data: dict[str, Any]
    encoded: str = field(repr=False)

    @property
    def scenario(self) -> str:
        return str(self.data["scenario"])

    @property
    def setting(self) -> str:
        return str(self.data["setting"])

    @property
    def arm(self) -> str:
        return str(self.data["arm"])

    @property
    def repetition(self) -> int:
        return int(self.data["repetition"])

    @property
    def result(self) -> dict[str, Any]:
        """What the client has said."""
        return self.part("result")

    @property
    def plan(self) -> dict[str, Any]:
        """The arm's part of the plan."""
        return self.part("plan", "arm")

    @property
    def terms(self) -> str:
        """What runs share that can be held against each other: the kind of link, the load, and how both were scaled."""
        return json.dumps([self.part("link").get("kind"), self.part("plan", "load"), self.part("scaled").get("share")])

    def part(self, *names: str) -> dict[str, Any]:
        """What is stored under these names, one within the other; empty where nothing is."""
        found: dict[str, Any] = self.data
        for name in names:
            value = found.get(name) or {}
            if not isinstance(value, dict):
                raise LabError(f'{self.file}: "{name}" is not an object, but {value!r}')
            found = value
        return found

    @cached_property
    def latencies(self) -> Latencies:
        try:
            return Latencies.decode(self.encoded)
        except ValueError as error:
            raise LabError(f"{self.file}: its histogram cannot be read: {error}") from error


@dataclass(frozen=True, eq=False)
class Group:
    """The repetitions of one arm in one setting, in their order."""

    runs: tuple[Stored, ...]

    @property
    def arm(self) -> str:
        return self.runs[0].arm

    @property
    def setting(self) -> str:
        return self.runs[0].setting

    @property
    def scenario(self) -> str:
        return self.runs[0].scenario

    @property
    def plan(self) -> dict[str, Any]:
        return self.runs[0].plan

    @property
    def sessions(self) -> int:
        """How many the arm may have at a time."""
        return int(self.plan.get("sessions") or self.runs[0].result.get("sessions") or 0)

    @cached_property
    def latencies(self) -> Latencies:
        """Of all repetitions."""
        together = self.runs[0].latencies
        for run in self.runs[1:]:
            together = together + run.latencies
        return together


def read(folder: Path) -> list[Stored]:
    """All that is stored under ``folder``. Raises :class:`LabError` for what cannot be read."""
    found = []
    for path in sorted(folder.glob("*/*.json")):
        try:
            data = json.loads(path.read_text())
            encoded = path.with_suffix(".hdr").read_text().strip()
        except (OSError, ValueError) as error:
            raise LabError(f"{path}: {error}") from error
        run = Stored(str(path.relative_to(folder)), data, encoded)
        _check(run)
        found.append(run)
    return found


def _check(run: Stored) -> None:
    if not isinstance(run.data, dict):
        raise LabError(f"{run.file}: it is not the result of a run")
    missing = [key for key in ("scenario", "setting", "arm", "repetition", "result") if key not in run.data]
    if missing:
        raise LabError(f"{run.file}: it does not say its {', '.join(missing)}")
    if not run.plan.get("kind"):
        raise LabError(f"{run.file}: it does not say of what kind its arm is")


def groups(stored: Sequence[Stored]) -> list[Group]:
    """Repetitions put together, in the order of scenario, setting and arm.

    Raises :class:`LabError` for repetitions that are none: one that was shorter, or over another kind of link.
    """
    together: dict[tuple[str, str, str], list[Stored]] = {}
    for run in stored:
        beside = together.setdefault((run.scenario, run.setting, run.arm), [])
        if beside and beside[0].terms != run.terms:
            raise LabError(
                f"{beside[0].file} and {run.file} are no repetitions of one another: their loads or links differ, as "
                "those of a --quick run do; run the scenario again, in full, or delete those of one kind"
            )
        beside.append(run)
    return [Group(tuple(sorted(together[key], key=lambda run: run.repetition))) for key in sorted(together)]
