"""Who may begin a handshake: bounds on what clients that have proved nothing yet can make us hold.

A handshake in progress costs some 60 kB and a millisecond or two, and its source address may be forged. So half-open
handshakes are counted, in all and per address, and above a threshold a client first shows, by Retry, that it receives
where it sends from; forged floods then cost a packet each and hold nothing, and only what has a real address counts
against the real address. Pure: it keeps counts, and answers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

__all__ = ["Admission", "AdmissionLimits", "HalfOpen", "RateLimit", "RetryMode", "Verdict", "site_of"]

RetryMode = Literal["auto", "always", "never"]

_IPV6_SITE = 8
_IPV6_PACKED = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """How much a listener lets strangers begin."""

    retry: RetryMode = "auto"
    """Whether a client must show its address first: always, never, or as soon as ``retry_above`` are half open."""
    max_half_open: int = 512
    """Handshakes in progress, in all. Above it new ones wait, if their address is shown, or are dropped."""
    max_half_open_per_address: int = 128
    """Handshakes in progress from one IPv4 address or one IPv6 /64. Above it new ones wait or are dropped, too."""

    @property
    def retry_above(self) -> int:
        """Half-open handshakes at which "auto" begins to ask. The other three quarters are for who has shown it."""
        return self.max_half_open // 4

    @property
    def unproved_per_address(self) -> int:
        """What one address may have half open before it must show itself; the rest is kept for when it has."""
        return max(1, self.max_half_open_per_address // 4)


class Verdict(Enum):
    """What to do with a first packet."""

    ADMIT = auto()
    RETRY = auto()
    WAIT = auto()
    """Its address is shown, and too many others are in progress."""
    DROP = auto()


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """One admitted handshake, to be handed back when it is over."""

    site: bytes
    proved: bool


class Admission:
    """Counts half-open handshakes and judges new ones."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        """For handshakes that begin from now on."""
        self._half_open: Counter[HalfOpen] = Counter()
        self._total = 0

    def __repr__(self) -> str:
        return f"<Admission [{self._total} half open, {len(self._half_open)} sites]>"

    @property
    def half_open(self) -> int:
        """Handshakes in progress."""
        return self._total

    @property
    def is_full(self) -> bool:
        """Whether nobody can be admitted until a handshake is over."""
        return self._total >= self.limits.max_half_open

    def judge(self, site: bytes, *, proved: bool, waiting: int = 0) -> Verdict:
        """Says what becomes of a handshake that ``site`` wants to begin; ``proved`` if a token showed its address;
        ``waiting``: how many others may begin before it."""
        crowded = Verdict.WAIT if proved else Verdict.DROP
        if not proved and self._must_prove(site, waiting):
            return Verdict.RETRY
        if self.is_full or (not proved and self._total + waiting >= self.limits.max_half_open):
            return crowded
        return crowded if self._is_greedy(site, proved=proved) else Verdict.ADMIT

    def may_begin(self, site: bytes, *, proved: bool) -> bool:
        """Whether it is the turn of one that has waited."""
        return not self.is_full and not self._is_greedy(site, proved=proved)

    def _is_greedy(self, site: bytes, *, proved: bool) -> bool:
        return self._half_open[HalfOpen(site, proved)] >= self.limits.max_half_open_per_address

    def _must_prove(self, site: bytes, waiting: int) -> bool:
        limits = self.limits
        if limits.retry != "auto":
            return limits.retry == "always"
        crowded = self._total + waiting >= limits.retry_above
        return crowded or self._half_open[HalfOpen(site, proved=False)] >= limits.unproved_per_address

    def begin(self, site: bytes, *, proved: bool) -> HalfOpen:
        """Counts a handshake that begins; hand the result to ``end`` once, however it ends."""
        entry = HalfOpen(site, proved)
        self._half_open[entry] += 1
        self._total += 1
        return entry

    def end(self, entry: HalfOpen) -> None:
        """Counts a handshake as over: completed, failed or given up."""
        self._total -= 1
        self._half_open[entry] -= 1
        if not self._half_open[entry]:
            del self._half_open[entry]


class RateLimit:
    """A bucket of tokens, for the answers that cost more than the packet that asks for them."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._tokens = per_second
        self._at = 0.0

    def allows(self, now: float) -> bool:
        """Takes a token, if there is one. ``now`` is in seconds, on any clock."""
        self._tokens = min(self._rate, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def site_of(packed: bytes) -> bytes:
    """Returns what counts as one address, from ``retry.packed_address``: an IPv4 address, or the /64 of an IPv6 one."""
    return packed[:_IPV6_SITE] if len(packed) == _IPV6_PACKED else packed[:-2]
