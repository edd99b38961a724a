"""What a link is to be like: delay, jitter, loss, rate, for each direction. Values only.

A specification is written as ``rtt=30,loss=1`` (milliseconds, percent), and as JSON in what is stored with results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from netem.errors import LabError

__all__ = ["LAN", "WAN", "Direction", "LinkSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One direction of a link. Times in seconds, probabilities from 0 to 1, rates in bits per second."""

    delay: float = 0.0
    jitter: float = 0.0
    """Uniform, to both sides of the delay."""
    reorder: bool = False
    """Whether packets may overtake each other by their jitter."""
    loss: float = 0.0
    """Of each packet, whatever became of the others."""
    burst: tuple[float, float] | None = None
    """Gilbert's model: the probabilities that a bad time begins and ends with a packet. In a bad time all are lost."""
    rate: float = 0.0
    """0: no limit."""
    buffer: int = 0
    """Octets that wait for the rate before packets are dropped; 0: no limit but `limit`."""
    limit: int = 100_000
    """Packets that are held at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Both directions: ``there`` is from the client's side. ``seed`` decides which packets are lost."""

    there: Direction
    back: Direction
    seed: int = 1

    @classmethod
    def symmetric(cls, direction: Direction, *, seed: int = 1) -> LinkSpec:
        return cls(there=direction, back=direction, seed=seed)

    @property
    def rtt(self) -> float:
        """Seconds, without queues and jitter."""
        return self.there.delay + self.back.delay

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LinkSpec:
        return cls(there=_direction(data["there"]), back=_direction(data["back"]), seed=data["seed"])

    @classmethod
    def parse(cls, text: str, base: LinkSpec | None = None) -> LinkSpec:
        """``rtt=30,jitter=2,loss=1,burst=0.5:30,rate=100,buffer=375,reorder=1,seed=7``, all but rtt per direction.

        Milliseconds, percent, Mbit/s, kB. What is not named is as in ``base``. Raises :class:`LabError`.
        """
        spec = base or WAN
        direction, seed = spec.there, spec.seed
        for pair in filter(None, (part.strip() for part in text.split(","))):
            key, _, value = pair.partition("=")
            try:
                if key == "seed":
                    seed = int(value)
                else:
                    direction = replace(direction, **_READ[key](value))
            except KeyError:
                known = ", ".join([*_READ, "seed"])
                raise LabError(f'link: unknown key "{key}"; known are {known}') from None
            except ValueError:
                raise LabError(f'link: bad value "{value}" of {key}') from None
        return cls.symmetric(direction, seed=seed)


def _direction(data: dict[str, Any]) -> Direction:
    burst = data.get("burst")
    return Direction(**{**data, "burst": None if burst is None else (burst[0], burst[1])})


def _not_negative(value: str, factor: float = 1.0) -> float:
    number = float(value) * factor
    if not 0 <= number < float("inf"):
        raise ValueError(value)
    return number


def _probability(value: str) -> float:
    number = _not_negative(value) / 100
    if number > 1:
        raise ValueError(value)
    return number


def _burst(value: str) -> dict[str, Any]:
    begins, _, ends = value.partition(":")
    if not _probability(ends):
        raise ValueError(value)  # or it would never end
    return {"burst": (_probability(begins), _probability(ends))}


_READ: dict[str, Callable[[str], dict[str, Any]]] = {
    "rtt": lambda value: {"delay": _not_negative(value, 0.5e-3)},
    "jitter": lambda value: {"jitter": _not_negative(value, 1e-3)},
    "reorder": lambda value: {"reorder": bool(int(value))},
    "loss": lambda value: {"loss": _probability(value)},
    "burst": _burst,
    "rate": lambda value: {"rate": _not_negative(value, 1e6)},
    "buffer": lambda value: {"buffer": int(_not_negative(value, 1000))},
    "limit": lambda value: {"limit": int(value)},
}

WAN = LinkSpec.symmetric(Direction(delay=0.015))
"""30 ms round trip, nothing lost."""
LAN = LinkSpec.symmetric(Direction())
"""As quick as two namespaces are, far below 2 ms."""
