"""In which order the servers of a list are tried: a pure function of what is known of them.

Rules:

1.  Servers that are what is asked for come first, then those of which that is not known, then those that were something
    else when they were last looked at, and last those that are down. The latter two are not left out: what is known of
    them may be out of date.
2.  Where only one server can be meant (a primary), and where ``load_balance_hosts`` is "disable", the one that serves
    now comes first of its kind, and after it the list goes on from there, and round.
3.  Where several may serve, each connection begins with another server ("round-robin"); those of which nothing is known
    take part, or a standby that comes back would never get work again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "in_order"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One server, as far as the choice is concerned."""

    fits: bool | None
    """Whether it is what is asked for; None: not known."""
    is_down: bool = False
    """Whether the last connection to it failed, and its pause is not over yet."""

    @property
    def is_hopeful(self) -> bool:
        """Whether it may be what is asked for."""
        return self.fits is not False and not self.is_down


def in_order(candidates: Sequence[Candidate], *, first: int, several: bool) -> list[int]:
    """The places in ``candidates`` in the order in which they are tried.

    ``first``: the turn, where ``several`` may serve (then the unknown are equal to those that fit); else the one that
    serves now.
    """
    ranks: dict[int, list[int]] = {}
    for at, candidate in enumerate(candidates):
        ranks.setdefault(_rank(candidate, several=several), []).append(at)
    order: list[int] = []
    for rank in sorted(ranks):
        equals = ranks[rank]
        # Turns are taken among those who serve, whatever stands between them in the list.
        begin = first % len(equals) if several else sum(at < first for at in equals)
        order += equals[begin:] + equals[:begin]
    return order


def _rank(candidate: Candidate, *, several: bool) -> int:
    if candidate.is_down:
        return 3
    if candidate.fits is None:
        return 0 if several else 1
    return 0 if candidate.fits else 2
