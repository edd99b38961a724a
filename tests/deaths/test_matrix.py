"""Each cell of the death matrix, by what `matrix` says. The cells of a row are played together, by its first test."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from deaths.matrix import EXPECTED, LONG, STATES, Outcome
from deaths.rows import ROWS, play_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.site import Site

ROWS_OF_TESTS = [pytest.param(who, marks=pytest.mark.long if who in LONG else ()) for who in EXPECTED]
Played = dict[str, dict[str, Outcome | Exception]]


@pytest.fixture(scope="module")
def played() -> Played:
    """The outcomes of the rows that have been played."""
    return {}


@pytest.fixture
def chosen(request: pytest.FixtureRequest, who: str) -> list[str]:
    """The states of this row that are to be tested in this run."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return [params["state"] for params in calls if params.get("who") == who]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", ROWS_OF_TESTS)
async def test_cell(
    who: str,
    state: str,
    theatre: Site,
    played: Played,
    chosen: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    if who not in played:
        before = asyncio.all_tasks()
        played[who] = await play_row(who, chosen, theatre)
        assert asyncio.all_tasks() == before
        # A socket that nobody closed says so when it is collected, and warnings are errors.
        gc.collect()
    outcome = played[who][state]
    if isinstance(outcome, Exception):
        raise outcome
    record_property("observed", str(outcome))
    assert outcome == EXPECTED[who][state]


def test_every_row_can_be_played() -> None:
    assert ROWS.keys() == EXPECTED.keys()
