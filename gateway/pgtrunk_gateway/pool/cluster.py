"""What Patroni says of a cluster: ``GET /cluster`` of its REST API, read. Pure.

An answer is a JSON document with ``members``, each with ``role``, ``state``, and the ``host`` and ``port`` of its
PostgreSQL (Patroni's documentation, "REST API"). Roles have had several names over its versions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgtrunk_gateway.config.entries import Place

if TYPE_CHECKING:
    from pgtrunk_gateway.config.entries import SessionAttrs

__all__ = ["Member", "NoCluster", "places", "read_cluster"]

_LEADERS: Final = frozenset({"leader", "master", "primary", "standby_leader"})
_FOLLOWS: Final = frozenset({"running", "streaming", "in archive recovery"})
"""States in which a replica can be read from."""
_PORTS: Final = range(1, 65536)


class NoCluster(ValueError):
    """The answer is none."""


@dataclass(frozen=True, slots=True)
class Member:
    """One server of the cluster."""

    place: Place
    leads: bool
    """Whether Patroni has it as the leader: of a standby cluster, too, whose leader is a standby."""
    serves: bool
    """Whether a replica can be read from, and is meant to be."""


def read_cluster(document: bytes) -> tuple[Member, ...]:
    """The members with an address. Raises :class:`NoCluster`."""
    try:
        members: Any = json.loads(document)["members"]
        return tuple(_member(each) for each in members if each.get("host"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NoCluster(f"no list of members: {error!r}") from error


def _member(said: Any) -> Member:
    host, port = said["host"], said.get("port", 5432)
    if not isinstance(host, str) or not isinstance(port, int) or port not in _PORTS:
        raise TypeError(f"no address: {host!r}, {port!r}")
    leads = said.get("role") in _LEADERS
    tags = said.get("tags") or {}
    return Member(
        Place(host, port), leads, not leads and said.get("state") in _FOLLOWS and not tags.get("noloadbalance")
    )


def places(members: Sequence[Member], attrs: SessionAttrs) -> tuple[Place, ...]:
    """Where a database with ``attrs`` is to be looked for; nowhere while a cluster has no leader, or no replicas."""
    leaders = tuple(member.place for member in members if member.leads)
    replicas = tuple(member.place for member in members if member.serves)
    match attrs:
        case "standby" | "read-only":
            return replicas
        case "prefer-standby":
            return (*replicas, *leaders)
        case _:
            return leaders
