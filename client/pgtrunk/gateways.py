"""The gateways of one trunk: which of their addresses is tried first, which is thought to be dead, and which connection
should be elsewhere. Decided here, done elsewhere: it knows no sockets, no resolver and no clock.

Rules:
 1. Connections are spread: the next one goes to the gateway that has the fewest of this trunk's, and there to the
    address that has the fewest. Among equals each trunk has an order of its own, by rendezvous hashing, so that many
    trunks with a connection each are spread too, and so are those that lose a gateway. With load_balance_hosts=disable
    the order is that of the list, and the first gateway that is alive gets all.
 2. Families take turns, beginning with the resolver's favourite (RFC 8305 section 4); and after two addresses of one
    gateway it is the next gateway's turn.
 3. An address that has failed is dead for a while, which grows from failure to failure. Then it is due: it is tried
    again, but beside others and not before them, until it has answered. Nobody waits for what is dead as long as there
    is something else.
 4. A gateway that asks to be left is spared for a while, as if it were dead.
 5. A connection is misplaced where rule 1 would put it elsewhere: one gateway has two more than another, or one more
    and is behind it in the trunk's order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.backoff import Backoff
from pgtrunk.errors import CertificateError
from pgtrunk.telemetry import GatewayStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pgtrunk.address import Address

__all__ = ["Candidate", "Gateways", "Move", "Step"]

PATIENCE: Final = Backoff(base=1.0, factor=2.0, ceiling=30.0)
"""How long an address that failed is dead."""

DISTRUST: Final = Backoff(base=15.0, factor=2.0, ceiling=60.0)
"""The same where a certificate was wrong: it takes somebody to change that."""

SPARED: Final = 5.0
"""Seconds for which a gateway that has asked to be left is spared."""

_TURN: Final = 2
"""Addresses of one gateway before it is the next one's turn."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address of one gateway."""

    gateway: Address
    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Step:
    """The next attempt of a dial."""

    candidate: Candidate
    is_probe: bool
    """Whether it was dead until now: then the next attempt begins with it."""
    round_trip: float | None


@dataclass(frozen=True, slots=True)
class Move:
    """A connection would be better elsewhere."""

    source: Candidate
    gateway: Address
    """Where it should be."""
    candidate: Candidate | None = None
    """At which of its addresses; None: any."""


@dataclass(slots=True)
class Health:
    """What is known of an address, or of a name that has none."""

    failures: int = 0
    """In a row."""
    retry_at: float = 0.0
    """When it is due, dead or spared."""
    round_trip: float | None = None
    """Seconds, where it has been reached."""

    def blame(self, patience: Backoff, now: float, jitter: float) -> None:
        self.failures += 1
        self.retry_at = now + patience.delay(self.failures, jitter)


@dataclass(slots=True)
class Known:
    """What is known of a gateway."""

    name: Health = field(default_factory=Health)
    """Of the resolution of its name."""
    candidates: tuple[Candidate, ...] = ()
    """Its addresses, as they were resolved last, the resolver's favourite first."""
    opened: int = 0
    failures: int = 0
    """In all."""
    last_error: str | None = None


class Gateways:
    """What is known of the gateways of a list. ``salt`` makes the order of this trunk, ``now`` is a monotonic clock's,
    ``jitter`` in [0, 1); ``counts`` are the connections of the trunk that are to stay, by address."""

    def __init__(self, addresses: Sequence[Address], *, spreads: bool, salt: bytes) -> None:
        self.addresses = tuple(addresses)
        self.spreads = spreads
        self._known = {address: Known() for address in addresses}
        self._health: dict[Candidate, Health] = {}
        self._salt = salt
        ranked = sorted(addresses, key=self._hash) if spreads else addresses
        self._ranks = {address: rank for rank, address in enumerate(ranked)}

    # What happened.

    def resolved(self, gateway: Address, candidates: Iterable[Candidate]) -> None:
        """A name has these addresses now. What is known of those that it had before is forgotten."""
        known = self._known[gateway]
        fresh = tuple(dict.fromkeys(candidates))
        for gone in set(known.candidates) - set(fresh):
            self._health.pop(gone, None)
        known.candidates, known.name = fresh, Health()

    def unresolved(self, gateway: Address, error: BaseException, now: float, jitter: float) -> tuple[Candidate, ...]:
        """A name could not be resolved. Returns the addresses that it had when it could."""
        known = self._known[gateway]
        known.name.blame(PATIENCE, now, jitter)
        known.failures += 1
        known.last_error = str(error)
        return known.candidates

    def reached(self, candidate: Candidate, round_trip: float | None) -> None:
        """A connection is open."""
        self._known[candidate.gateway].opened += 1
        self._health[candidate] = Health(round_trip=round_trip)

    def failed(self, candidate: Candidate, error: BaseException | None, now: float, jitter: float) -> None:
        """An attempt has failed, or a connection was lost; without an error it was silent while others answered."""
        known, health = self._known[candidate.gateway], self._of(candidate)
        health.blame(DISTRUST if isinstance(error, CertificateError) else PATIENCE, now, jitter)
        known.failures += 1
        known.last_error = f"{candidate} did not answer" if error is None else str(error)

    def undecided(self, candidate: Candidate, now: float, jitter: float) -> None:
        """An attempt was given up before anything could be said of it. What was dead is due again soon."""
        health = self._of(candidate)
        if health.failures:
            health.retry_at = now + PATIENCE.delay(1, jitter)

    def spare(self, candidate: Candidate, now: float) -> None:
        """A connection is asked to be left."""
        health = self._of(candidate)
        health.retry_at = max(health.retry_at, now + SPARED)

    # What is to be done.

    def order(self, counts: Mapping[Candidate, int], now: float) -> list[Address]:
        """The gateways, the best first."""
        loads = self._loads(counts)
        return sorted(self.addresses, key=lambda each: (not self._is_usable(each, now), *self._place(each, loads)))

    def plan(self, candidates: Iterable[Candidate], counts: Mapping[Candidate, int], now: float) -> list[Step]:
        """In which order addresses are tried that have not been yet."""
        order = {gateway: place for place, gateway in enumerate(self.order(counts, now))}
        keyed = []
        for gateway, addresses in _by_gateway(candidates).items():
            for position, candidate in enumerate(self._in_turns(addresses, counts)):
                health = self._of(candidate)
                # Of what is dead, that which is due first is the most likely to be back.
                late = max(0.0, health.retry_at - now)
                keyed.append(((late, position // _TURN, order[gateway], position), candidate))
        keyed.sort(key=lambda pair: pair[0])
        # Where all were dead, none has to be tried beside others.
        none_alive = all(self._of(candidate).failures for _, candidate in keyed)
        return [self._step(candidate, none_alive) for _, candidate in keyed]

    def stats(self, counts: Mapping[Candidate, int]) -> tuple[GatewayStats, ...]:
        """What there is to see of each."""
        loads = self._loads(counts)
        return tuple(
            GatewayStats(
                gateway=str(gateway),
                connections=loads[gateway],
                alive=int(not self._has_failed(gateway)),
                opened=known.opened,
                failures=known.failures,
                last_error=known.last_error,
            )
            for gateway, known in self._known.items()
        )

    def has_usable(self, now: float, *, but: Candidate | None = None) -> bool:
        """Whether there is anything that is neither dead nor spared, besides one address."""
        return any(self._is_usable(gateway, now, but) for gateway in self.addresses)

    def misplaced(self, counts: Mapping[Candidate, int], now: float) -> Move | None:
        """A connection that would be better elsewhere, where that can be tried now."""
        move = self._between_gateways(counts, now)
        if move is None and self.spreads:
            for gateway in self.addresses:
                move = move or self._within(gateway, counts, now)
        return move

    # In detail.

    def _step(self, candidate: Candidate, none_alive: bool) -> Step:
        health = self._of(candidate)
        return Step(candidate, bool(health.failures) and not none_alive, health.round_trip)

    def _between_gateways(self, counts: Mapping[Candidate, int], now: float) -> Move | None:
        loads = self._loads(counts)
        usable = [gateway for gateway in self.addresses if self._is_usable(gateway, now)]
        if not usable or not loads:
            return None
        target = min(usable, key=lambda each: self._place(each, loads))
        source = max(loads, key=lambda each: self._place(each, loads))
        if self.spreads:
            uneven = _is_uneven(loads[source], loads[target], self._ranks[target] < self._ranks[source])
        else:
            uneven = self._ranks[target] < self._ranks[source]
        if not uneven:
            return None
        here = {candidate: number for candidate, number in counts.items() if candidate.gateway == source and number}
        return Move(max(here, key=lambda each: here[each]), target)

    def _within(self, gateway: Address, counts: Mapping[Candidate, int], now: float) -> Move | None:
        """Of one family, since it takes two addresses of one gateway to reach it by both."""
        known = self._known[gateway].candidates
        family = known[0].family if known else 0
        peers = [candidate for candidate in known if candidate.family == family]
        usable = [candidate for candidate in peers if self._of(candidate).retry_at <= now]
        if len(peers) < 2 or not usable:
            return None
        target = min(usable, key=lambda each: (counts.get(each, 0), self._hash(each)))
        source = max(peers, key=lambda each: (counts.get(each, 0), self._hash(each)))
        first = self._hash(target) < self._hash(source)
        uneven = _is_uneven(counts.get(source, 0), counts.get(target, 0), first)
        return Move(source, gateway, target) if uneven else None

    def _in_turns(self, addresses: Sequence[Candidate], counts: Mapping[Candidate, int]) -> list[Candidate]:
        """Families take turns, and in a family those come first that have the fewest connections."""
        families = list(dict.fromkeys(each.family for each in addresses))
        turns = []
        for number, family in enumerate(families):
            peers = [each for each in addresses if each.family == family]
            if self.spreads:
                peers.sort(key=lambda each: (counts.get(each, 0), self._hash(each)))
            turns += [(turn, number, each) for turn, each in enumerate(peers)]
        return [each for _, _, each in sorted(turns, key=lambda turn: turn[:2])]

    def _place(self, gateway: Address, loads: Mapping[Address, int]) -> tuple[int, int]:
        return (loads.get(gateway, 0) if self.spreads else 0, self._ranks[gateway])

    def _loads(self, counts: Mapping[Candidate, int]) -> Counter[Address]:
        loads: Counter[Address] = Counter()
        for candidate, number in counts.items():
            if number:
                loads[candidate.gateway] += number
        return loads

    def _is_usable(self, gateway: Address, now: float, but: Candidate | None = None) -> bool:
        """Whether there is anything to be tried at it now: something that is not dead, or due."""
        known = self._known[gateway]
        if not known.candidates:
            return known.name.retry_at <= now
        return any(self._of(each).retry_at <= now for each in known.candidates if each != but)

    def _has_failed(self, gateway: Address) -> bool:
        known = self._known[gateway]
        if not known.candidates:
            return known.name.failures > 0
        return all(self._of(candidate).failures for candidate in known.candidates)

    def _of(self, candidate: Candidate) -> Health:
        return self._health.setdefault(candidate, Health())

    def _hash(self, place: Address | Candidate) -> bytes:
        return blake2b(str(place).encode(), key=self._salt, digest_size=8).digest()


def _is_uneven(most: int, fewest: int, is_first: bool) -> bool:
    return most - fewest >= 2 or (most - fewest == 1 and is_first)


def _by_gateway(candidates: Iterable[Candidate]) -> dict[Address, list[Candidate]]:
    groups: dict[Address, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.gateway, []).append(candidate)
    return groups
