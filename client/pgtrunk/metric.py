"""What a field of a picture is to those who watch: its kind, its unit, what it means. And all of a picture's, in order.

The pictures in telemetry.py say it where they define their fields, and exporters ask here: a field that is added there
is exported everywhere. Knows no exporter and no field.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Family", "Kind", "Metric", "Sample", "Unit", "counter", "each", "families", "gauge", "label", "times"]

Kind: TypeAlias = Literal["gauge", "counter", "times"]
"""A number of now, a total that only grows, or a `Timing`."""
Unit: TypeAlias = Literal["", "seconds", "bytes"]

_METRIC: Final = "metric"
_LABEL: Final = "label"
_EACH: Final = "each"


@dataclass(frozen=True, slots=True)
class Metric:
    """What a field says of itself."""

    kind: Kind
    help: str
    unit: Unit = ""
    name: str | None = None
    """None: the names of the fields that lead to it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What tells it from other fields of the same ``name``."""


def gauge(help: str, *, unit: Unit = "", name: str | None = None, default: Any = 0, **labels: str) -> Any:  # noqa: A002
    """A field with a number of now."""
    return field(default=default, metadata={_METRIC: Metric("gauge", help, unit, name, labels)})


def counter(help: str, *, unit: Unit = "", name: str | None = None, **labels: str) -> Any:  # noqa: A002
    """A field with a total that only grows."""
    return field(default=0, metadata={_METRIC: Metric("counter", help, unit, name, labels)})


def times(help: str, default: Any, *, name: str | None = None, **labels: str) -> Any:  # noqa: A002
    """A field with a `Timing`, in seconds."""
    return field(default=default, metadata={_METRIC: Metric("times", help, "seconds", name, labels)})


def label(default: Any) -> Any:
    """A field that tells its picture from others of the same tuple."""
    return field(default=default, metadata={_LABEL: True})


def each(of: type[Any]) -> Any:
    """A field with a tuple of such pictures, each of which has a default for all its fields."""
    return field(default=(), metadata={_EACH: of})


class Sample(NamedTuple):
    """A value, and what tells it from the others of its family."""

    labels: Mapping[str, str]
    value: Any


@dataclass(slots=True)
class Family:
    """All values of one name."""

    name: str
    """Words with "_" between them, without unit."""
    kind: Kind
    help: str
    unit: Unit
    samples: list[Sample]


def families(picture: Any) -> list[Family]:
    """What there is in a picture, a dataclass, and in those within it. A family may have no samples at the moment."""
    found: dict[str, Family] = {}
    for name, metric, sample in _walk(picture, (), {}):
        family = found.setdefault(name, Family(name, metric.kind, metric.help, metric.unit, []))
        if sample is not None:
            family.samples.append(sample)
    return list(found.values())


def _walk(
    picture: Any, path: tuple[str, ...], labels: Mapping[str, str]
) -> Iterator[tuple[str, Metric, Sample | None]]:
    for one in fields(picture):
        value = getattr(picture, one.name)
        metric = one.metadata.get(_METRIC)
        within = (*path, one.name)
        if metric is not None:
            yield metric.name or "_".join(within), metric, Sample({**labels, **metric.labels}, value)
        elif _EACH in one.metadata:
            yield from ((name, metric, None) for name, metric, _ in _walk(one.metadata[_EACH](), within, labels))
            for member in value:
                yield from _walk(member, within, {**labels, **_labels_of(member)})
        elif is_dataclass(value):
            yield from _walk(value, within, labels)


def _labels_of(picture: Any) -> dict[str, str]:
    return {one.name: str(getattr(picture, one.name)) for one in fields(picture) if _LABEL in one.metadata}
