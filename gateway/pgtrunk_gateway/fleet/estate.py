"""What a bank leaves to the bank of the next supervisor: who holds what, and who waits for more. Pure.

Workers go on as if nothing had happened. Places on their way to them are held already; what was asked back and not
given is released, and asked again by the new bank if it still needs it. Numbers of questions go on behind the old
bank's, since late answers to these come to the new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from pgtrunk_gateway.fleet.account import Level, Limit
from pgtrunk_gateway.fleet.bank import Decision, Release

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.account import Want
    from pgtrunk_gateway.fleet.bank import Bank
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["inherit", "leave"]


def leave(bank: Bank) -> tuple[list[Decision], Body]:
    """What workers are to be told, and what the next bank must know. Then ``bank`` decides nothing any more."""
    released: list[Decision] = [
        Release(each.worker, each.number)
        for account in bank.accounts.values()
        for each in account.recalled.values()
        if not each.closing
    ]
    return released, {
        "accounts": [
            {
                "name": account.name,
                "limit": [account.limit.size, account.limit.reserve, account.limit.minimum],
                "held": list(account.held.items()),
                "kept": list(account.kept.items()),
            }
            for account in bank.accounts.values()
        ],
        "wants": [
            _want(want) for account in bank.accounts.values() for want in account.wants if want.accounts[0] is account
        ],
        "gone": sorted(bank._gone),
        "next": next(bank._numbers),
    }


def _want(want: Want) -> Body:
    level = Level(
        count=want.count, late=want.late, short=want.short, since=want.since, pressing=want.pressing, own=want.own
    )
    limits = [
        [account.name, [account.limit.size, account.limit.reserve, account.limit.minimum]] for account in want.accounts
    ]
    return {"worker": want.worker, "limits": limits, "level": asdict(level), "seen": want.granted}


def inherit(bank: Bank, estate: Body, numbers: Mapping[int, int]) -> list[Decision]:
    """Takes all of it over -> what follows. ``numbers``: those that workers have here, by those that they had."""
    bank._numbers = itertools.count(max(next(bank._numbers), estate["next"]))
    for each in estate["accounts"]:
        account = bank._account(tuple(each["name"]), Limit(*each["limit"]))
        for worker, count in each["held"]:
            account.held[numbers[worker]] = account.held.get(numbers[worker], 0) + count
            account.total += count
        for worker, count in each["kept"]:
            account.kept[numbers[worker]] = count
    bank._gone |= {numbers[worker] for worker in estate["gone"]}
    decisions: list[Decision] = []
    for each in estate["wants"]:
        limits = [(tuple(name), Limit(*limit)) for name, limit in each["limits"]]
        decisions += bank.want(numbers[each["worker"]], limits, Level(**each["level"]), each["seen"])
    return decisions
