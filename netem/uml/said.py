"""What the program in the guest says, a line of JSON each, and how a file that still grows is read as lines. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from netem.errors import LabError
from netem.measure import LinkReport, RoundTrips

__all__ = ["Checked", "Failed", "Lines", "Said", "Second", "Stored", "Up", "line", "parse"]


@dataclass(frozen=True, slots=True)
class Up:
    """The guest's laboratory is there."""

    kernel: str


@dataclass(frozen=True, slots=True)
class Checked:
    report: LinkReport


@dataclass(frozen=True, slots=True)
class Second:
    """A second of a run has gone by."""

    cell: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A run is over, and its files are in the folder."""

    cell: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It ends with this."""

    why: str


Said: TypeAlias = Up | Checked | Second | Stored | Failed
_KINDS: dict[str, type[Any]] = {"up": Up, "second": Second, "stored": Stored, "failed": Failed}


def line(said: Said) -> str:
    """What `parse` reads, with its end."""
    match said:
        case Up(text):
            value: dict[str, Any] = {"up": text}
        case Checked(report):
            value = {"checked": report.as_json()}
        case Second(text):
            value = {"second": text}
        case Stored(text):
            value = {"stored": text}
        case Failed(text):
            value = {"failed": text}
    return json.dumps(value) + "\n"


def parse(text: str) -> Said:
    """Raises :class:`LabError` for what is no such line."""
    try:
        ((key, value),) = json.loads(text).items()
        if key == "checked":
            trips = {each: RoundTrips(**value[each]) for each in ("wan", "lan")}
            return Checked(LinkReport(**{**value, **trips}))
        said: Said = _KINDS[key](value)
        return said
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LabError(f"the guest says what nobody understands: {text[:200]!r}") from error


class Lines:
    """Puts lines together from pieces of a file, which may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> list[str]:
        """The lines that are complete now, without their ends."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [each.decode() for each in lines]
