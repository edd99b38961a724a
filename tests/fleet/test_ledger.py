"""Totals of workers that come and go, and waiting until all of them are at rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgtrunk_gateway.fleet import settling
from pgtrunk_gateway.fleet.ledger import Ledger, as_totals, from_totals
from pgtrunk_gateway.fleet.settling import until_settled
from pgtrunk_gateway.stats.averages import Figures


def test_nothing_is_lost_with_a_worker() -> None:
    ledger = Ledger()
    ledger.tell(0, {"shop": Figures(xact_count=1)})
    ledger.tell(0, {"shop": Figures(xact_count=5)})
    ledger.tell(1, {"shop": Figures(xact_count=2), "other": Figures(query_count=1)})
    assert (ledger.read()["shop"].xact_count, ledger.departed) == (7, {})
    ledger.leave(0)
    ledger.leave(2)
    assert (ledger.read()["shop"].xact_count, ledger.departed["shop"].xact_count) == (7, 5)
    # The next one of that number begins with nothing.
    ledger.tell(0, {"shop": Figures(xact_count=1)})
    ledger.leave(0)
    ledger.leave(1)
    assert ledger.read() == ledger.departed == {"shop": Figures(xact_count=8), "other": Figures(query_count=1)}


def test_totals_travel() -> None:
    figures = {"shop": Figures(server_assignment_count=1, client_login_count=12)}
    assert from_totals(as_totals(figures)) == figures


class Workers:
    """Some take several questions to come to rest."""

    def __init__(self, **questions: int) -> None:
        self.questions = {int(name[1:]): count for name, count in questions.items()}
        self.asked: list[list[int] | None] = []

    async def ask(self, left: Sequence[int] | None, patience: float) -> Sequence[int]:
        self.asked.append(None if left is None else list(left))
        asked = list(self.questions) if left is None else left
        for index in asked:
            self.questions[index] -= 1
        return [index for index in asked if self.questions[index] > 0]


async def test_who_is_at_rest_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_BREATH", 0.0)
    workers = Workers(w0=1, w1=3, w2=2)
    assert await until_settled(workers.ask)
    assert workers.asked == [None, [1, 2], [1]]


async def test_without_workers_all_are_at_rest() -> None:
    assert await until_settled(Workers().ask)


async def test_who_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_BREATH", 0.001)
    assert not await until_settled(Workers(w0=1_000_000).ask, 0.01)
