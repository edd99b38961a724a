"""What the holders of an account give up even if sessions wait for it there: rules 5 and 6 of the bank. Pure.

It is found by moving places, in thought, one after the other from who has most to who waits longest, as long as that
makes counts more even. So nobody gives, or gets, more than that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.account import Account, Want

__all__ = ["POOL", "dues"]

POOL: Final = "pool"
"""How the names of pools' own accounts begin."""
_NEVER: Final = float("inf")


def dues(account: Account, blocked: Sequence[Want], living: Iterable[int]) -> dict[int, list[float]]:
    """By holder, for each place that it is to give up: before sessions that wait since later than when; oldest first.

    ``blocked``: the wants that ``account`` is in the way of, and that are pressing. ``living``: the workers that can
    give.
    """
    due: dict[int, list[float]] = {worker: [] for worker in living if worker in account.held}

    if account.name[0] != POOL:
        for want in blocked:
            # It has nothing at all, and needs nothing else.
            if not want.held and len(want.in_the_way) == 1:
                for sinces in due.values():
                    sinces.append(want.since)
        return due
    have = {worker: account.held[worker] - account.closing(worker) for worker in due}
    for _ in range(account.excess - sum(account.closing(worker) for worker in due)):
        giver = max(have, key=lambda worker: have[worker], default=None)
        if giver is None or not have[giver]:
            break
        have[giver] -= 1
        due[giver].append(-_NEVER)
    _even_out(account, blocked, have, due)
    return {worker: sorted(sinces) for worker, sinces in due.items()}


def _even_out(account: Account, blocked: Sequence[Want], have: dict[int, int], due: dict[int, list[float]]) -> None:
    left = {want: want.count for want in blocked}
    # What is being given up already goes to them.
    coming = sum(account.closing(worker) for worker in due) - account.excess
    while left:
        # In the order in which they will be granted.
        want = min(left, key=lambda want: (have.get(want.worker, 0), want.age))
        mine = have.get(want.worker, 0)
        if coming > 0:
            coming -= 1
        elif want.own:
            _give(want.worker, want, have, due)
        else:
            giver = max((each for each in due if each != want.worker), key=lambda each: have[each], default=None)
            if giver is None or have[giver] - mine < (2 if mine else 1):
                del left[want]
                continue
            if not mine:
                # It may wait for long until the one with most has one to give.
                for other in due:
                    if other not in (giver, want.worker):
                        due[other].append(want.since)
            _give(giver, want, have, due)
        have[want.worker] = mine + 1
        left[want] -= 1
        if not left[want]:
            del left[want]


def _give(giver: int, want: Want, have: dict[int, int], due: dict[int, list[float]]) -> None:
    if giver in due:
        due[giver].append(want.since)
        have[giver] -= 1
