"""A scenario made smaller, to what one emulated CPU carries: everything in it to the same share, so that it keeps its
proportions. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netem.plan import Arm, Load
    from netem.scenario import Cell, Scenario

__all__ = ["CARRIES", "Scaled", "scaled", "share_for", "words"]

CARRIES = 400.0
"""Queries a second that client, gateway, Postgres and link get through on one CPU between them, where a system call
takes 15 us and more."""
_LOGIN = 4
"""Queries that a login is worth."""
_POOL = 4
"""Connections to Postgres at least, or they would be what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A scenario made smaller, and the arms, by their names before, that are not in it."""

    scenario: Scenario
    twins: tuple[str, ...] = ()
    """They have become the same as another."""
    missing: tuple[str, ...] = ()
    """Nothing serves them here."""


def share_for(scenario: Scenario) -> float:
    """How much of it the guest carries: 1, or one half, one third and so on."""
    return 1 / max(1, math.ceil(max(map(_wanted, scenario.cells())) / CARRIES - 1e-9))


def _wanted(cell: Cell) -> float:
    """Queries a second at most, as far as load and round trip bound them."""
    load = cell.load
    match load.kind:
        case "fixed" | "ramp":
            return load.rate
        case "burst":
            return load.size / load.every
        case "closed":
            return (load.users or cell.arm.sessions) / (sum(load.think) / 2 + max(cell.link.rtt, 1e-3))
        case "connect":
            return cell.arm.sessions * _LOGIN


def scaled(scenario: Scenario, share: float, without: Collection[str] = ()) -> Scaled:
    """``share`` of rates, bursts, users, sessions, connections and pool; durations as they are.

    Arms whose kind is in ``without`` are missing.
    """
    names = {load.name: _load(load, share).name for load in scenario.loads}
    kept: dict[str, Arm] = {}
    twins = []
    for arm in scenario.arms:
        small = _arm(arm, share, names)
        if arm.kind in without:
            continue
        if small.name in kept:
            twins.append(arm.name)
        else:
            kept[small.name] = small
    small_scenario = replace(
        scenario,
        arms=tuple(kept.values()),
        loads=tuple(_load(load, share) for load in scenario.loads),
        pool_size=max(min(_POOL, scenario.pool_size), round(scenario.pool_size * share)),
    )
    missing = tuple(arm.name for arm in scenario.arms if arm.kind in without)
    return Scaled(scenario=small_scenario, twins=tuple(twins), missing=missing)


def words(share: float) -> str:
    """What is said of it."""
    if share == 1:
        return "not scaled: one emulated CPU carries all of it"
    return f"scaled to what one emulated CPU carries: rates and sessions are 1/{1 / share:g} of the scenario's"


def _load(load: Load, share: float) -> Load:
    rate, users = load.rate * share, _some(load.users, share)
    # How often a single session is opened is no matter of size.
    size = load.size if load.kind == "connect" else _some(load.size, share)
    number, was = rate or size or users, load.rate or load.size or load.users
    name = f"{number:g}" if load.name == f"{was:g}" else load.name
    # Steps are dropped: so few at each would be rounded down to next to nothing.
    return replace(load, rate=rate, size=size, users=users, name=name, step=0.0 if share < 1 else load.step)


def _arm(arm: Arm, share: float, loads: dict[str, str]) -> Arm:
    sessions, connections = _some(arm.sessions, share), _some(arm.connections, share)
    streams = math.ceil(sessions / connections) if connections else 0
    if arm.connections * arm.streams > arm.sessions:
        # There were more streams than sessions, and are again.
        streams += 1
    return replace(
        arm,
        sessions=sessions,
        connections=connections,
        streams=streams,
        initial=_some(arm.initial, share),
        loads=tuple(loads.get(name, name) for name in arm.loads),
    )


def _some(number: int, share: float) -> int:
    """None of none, else at least one."""
    return max(1, round(number * share)) if number else 0
