"""When an open loop asks: pure functions of a load and the time since its start."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from netem.errors import LabError

if TYPE_CHECKING:
    from netem.plan import Load

__all__ = ["asked_by", "moment", "total"]


def total(load: Load) -> int:
    """How much is asked in all."""
    return asked_by(load, load.seconds)


def asked_by(load: Load, elapsed: float) -> int:
    """How much is to have been asked ``elapsed`` seconds after the start."""
    at = min(elapsed, load.seconds)
    if at < 0:
        return 0
    match load.kind:
        case "fixed":
            return math.ceil(load.rate * at - 1e-9)
        case "ramp" if load.step:
            return _steps(load)[min(int(at / load.step + 1e-9), len(_steps(load)) - 1)]
        case "ramp":
            return math.floor(load.rate * at * at / (2 * load.seconds) + 1e-9)
        case "burst":
            bursts = math.ceil(load.seconds / load.every - 1e-9)
            return load.size * min(bursts, math.floor(at / load.every + 1e-9) + 1)
        case "closed" | "connect":
            raise LabError(f"{load.kind}: it has no schedule")


def moment(load: Load, number: int) -> float:
    """When the ``number``-th (from 0) is to be asked, in seconds after the start."""
    match load.kind:
        case "fixed":
            return number / load.rate
        case "ramp" if load.step:
            return bisect_right(_steps(load), number) * load.step
        case "ramp":
            return math.sqrt(2 * load.seconds * (number + 1) / load.rate)
        case "burst":
            return number // load.size * load.every
        case "closed" | "connect":
            raise LabError(f"{load.kind}: it has no schedule")


@lru_cache
def _steps(load: Load) -> tuple[int, ...]:
    """How much a ramp in steps is to have asked at each of them: at none more than whole queries."""
    steps = round(load.seconds / load.step)
    # In a fraction of integers, since 0.012 * 250 is less than 3 in floating point.
    grows = Fraction(str(load.rate)) * Fraction(str(load.step)) / steps
    return tuple(accumulate(math.floor(grows * number) for number in range(steps)))
