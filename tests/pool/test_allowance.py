"""A pool whose places are another's to give: what it asks for, what it opens, and that each place is accounted for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, QueryWaitTimeout, ShuttingDown
from pgtrunk_gateway.pool.accounts import Account
from pgtrunk_gateway.pool.walsender import Replication

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.accounts import Member
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import Opened
    from pgtrunk_gateway.pool.pool import Pool


class Hand:
    """An allowance that gives what the test says. ``out``: places that are with the pool."""

    def __init__(self) -> None:
        self.spare = 0
        self.floor = 0
        self.recalled = False
        self.waits = False
        self.way = False
        self.out = 0
        self.wanted: dict[str, object] = {}
        self.there: set[int] = set()
        self.pool: Member | None = None

    def attach(self, pool: Member) -> None:
        self.pool = pool

    def leave(self, pool: Member) -> None:
        assert self.pool is pool
        self.pool = None
        self.wanted = {}

    def want(self, count: int, *, late: int, short: int, since: float, own: bool) -> None:
        self.wanted = {"count": count, "late": late, "short": short, "own": own}

    def use(self) -> None:
        self.spare -= 1
        self.out += 1
        assert self.spare >= 0

    def opened(self, backend: Backend, opened: Opened) -> None:
        self.there.add(backend.id)

    def unopened(self) -> None:
        self.out -= 1

    def part(self, backend: Backend) -> None:
        self.there.remove(backend.id)
        self.out -= 1

    def gives_way(self, oldest: float, born: float) -> bool:
        return self.way

    def give(self, count: int) -> int:
        """So many places come -> how many of them are not needed."""
        self.spare += count
        assert self.pool is not None
        self.pool.maintain()
        rest, self.spare = self.spare, 0
        return rest

    def wants(self, count: int = 0, *, late: int = 0, short: int = 0, own: bool = False) -> bool:
        return self.wanted == {"count": count, "late": late, "short": short, "own": own}


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def asker(pool: Pool) -> NoteTaker:
    taker = NoteTaker(pool)
    if not taker.take():
        taker.wait()
    return taker


async def test_nothing_is_opened_without_a_place_and_no_more_than_there_are(server: Server, hand: Hand) -> None:
    account = Account("max_db_connections", 9)
    pool = server.add("shop", "app", allowance=hand, accounts=(account,), size=5)
    takers = [asker(pool) for _ in range(3)]
    assert hand.wants(3)
    assert (server.begun, pool.connecting) == (0, 0)
    assert hand.give(2) == 0
    assert hand.wants(1)
    await server.answer()
    assert [taker.backend is not None for taker in takers] == [True, True, False]
    assert account.count == hand.out == len(hand.there) == 2
    # Room that the pool has by itself is no room: one in use comes to who waits all the same.
    takers[0].give_back()
    assert takers[2].backend is not None
    assert hand.give(4) == 4
    assert hand.wants()
    await pool.close(ShuttingDown())
    assert (account.count, hand.out, hand.pool) == (0, 0, None)


async def test_one_that_has_asked_already_is_not_told_of_each_who_waits(server: Server, hand: Hand) -> None:
    pool = server.add("shop", "app", allowance=hand, size=5)
    takers = [asker(pool)]
    assert hand.wants(1)
    hand.waits = True
    takers += [asker(pool) for _ in range(2)]
    assert hand.wants(1)
    # It looks by itself.
    pool.maintain()
    assert hand.wants(3)
    assert hand.give(3) == 0
    await server.answer()
    assert all(taker.backend is not None for taker in takers)
    await pool.close(ShuttingDown())


async def test_no_more_is_asked_for_than_the_pool_may_have(server: Server, hand: Hand) -> None:
    pool = server.add("shop", "app", allowance=hand, size=2, reserve=1, reserve_timeout=0.02)
    takers = [asker(pool) for _ in range(6)]
    assert hand.wants(2)
    await until(lambda: hand.wants(3, late=3))
    assert hand.give(3) == 0
    await server.answer()
    assert sum(taker.backend is not None for taker in takers) == 3
    await pool.close(ShuttingDown())
    assert hand.out == 0


async def test_the_minimum_is_asked_for_as_such_and_kept_as_far_as_it_is_ours(server: Server, hand: Hand) -> None:
    pool = server.add("shop", "app", allowance=hand, minimum=3, idle_timeout=0.02)
    pool.maintain()
    assert hand.wants(short=3)
    asker(pool)
    assert hand.wants(1, short=2)
    hand.give(3)
    await server.answer()
    for backend in [each for each in pool.backends.values() if each.holder is not None]:
        backend.release()
    hand.floor = 1
    pool.maintain()
    await until(lambda: len(pool.backends) == 1)
    await asyncio.sleep(0.05)
    assert (len(pool.backends), hand.out) == (1, 1)
    assert hand.wants(short=2)
    await pool.close(ShuttingDown())


@pytest.mark.parametrize("error", [BackendUnavailable("connection refused"), BackendRefused("no", sqlstate="28P01")])
async def test_a_login_that_fails_gives_its_place_back(
    server: Server, hand: Hand, error: BackendRefused | BackendUnavailable
) -> None:
    pool = server.add("shop", "app", allowance=hand, retry=5.0)
    asker(pool)
    hand.give(1)
    await server.answer(error)
    assert hand.out == 0
    # While nothing may be tried, nothing is wanted, and what comes goes back.
    assert hand.wants()
    assert hand.give(1) == 1
    await pool.close(ShuttingDown())


@pytest.mark.parametrize("moment", ["asked", "opening", "there"])
@pytest.mark.parametrize("verb", ["pause", "kill", "reconnect", "close"])
async def test_each_place_is_accounted_for_whenever_a_verb_comes(
    server: Server, hand: Hand, moment: str, verb: str
) -> None:
    pool = server.add("shop", "app", allowance=hand)
    taker = asker(pool)
    if moment != "asked":
        hand.give(1)
        await server.settle()
    if moment == "there":
        await server.answer()
    match verb:
        case "pause":
            pool.pause()
            assert hand.wants()
            assert hand.give(1) == 1
        case "kill":
            pool.kill(ShuttingDown())
        case "reconnect":
            pool.reconnect()
        case _:
            await pool.close(ShuttingDown())
    await server.settle()
    if taker.backend is not None:
        taker.give_back()
    assert hand.out == pool.count == len(hand.there)
    if verb == "reconnect" and moment != "there":
        assert hand.wants(1)
    if verb != "close":
        await pool.close(ShuttingDown())
    assert (hand.out, hand.there) == (0, set())


async def test_a_free_backend_that_is_due_to_another_worker_is_closed(server: Server, hand: Hand) -> None:
    pool = server.add("shop", "app", allowance=hand)
    takers = [asker(pool), asker(pool)]
    hand.give(1)
    await server.answer()
    takers[0].give_back()
    assert takers[1].backend is not None
    hand.recalled = True
    pool.contend()
    late = asker(pool)
    hand.way = True
    takers[1].give_back()
    assert (late.backend, hand.out, len(pool.backends)) == (None, 0, 0)
    assert hand.wants(1)
    await pool.close(ShuttingDown())


@pytest.mark.parametrize("moment", ["queued", "opening", "there", "opened"])
async def test_a_replication_client_that_is_cancelled_leaves_no_place(server: Server, hand: Hand, moment: str) -> None:
    pool = server.add("shop", "app", allowance=hand)
    task = asyncio.create_task(pool.replicate(Replication.PHYSICAL, {"replication": "true"}))
    await server.settle()
    assert hand.wants(1, own=True)
    if moment != "queued":
        assert hand.give(2) == 1
        await server.settle()
    if moment == "opened":
        # The login is done, and the client has not heard of it.
        server.logins[0].set_result(None)
    elif moment == "there":
        await server.answer()
        (await task).leave("done")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.settle()
    assert (hand.out, pool.count) == (0, 0)
    assert hand.wants()
    await pool.close(ShuttingDown())


async def test_places_go_to_sessions_and_replication_in_the_order_in_which_they_came(
    server: Server, hand: Hand
) -> None:
    pool = server.add("shop", "app", allowance=hand)
    first = asker(pool)
    await asyncio.sleep(0.01)
    task = asyncio.create_task(pool.replicate(Replication.PHYSICAL, {"replication": "true"}))
    await asyncio.sleep(0.01)
    last = asker(pool)
    for served in ((True, False, False), (True, True, False), (True, True, True)):
        assert hand.give(1) == 0
        await server.answer()
        assert (first.backend is not None, task.done(), last.backend is not None) == served
    task.result().leave("done")
    await pool.close(ShuttingDown())
    assert hand.out == 0


async def test_who_waits_too_long_is_told_of_this_worker(server: Server, hand: Hand) -> None:
    pool = server.add("shop", "app", allowance=hand, size=4)
    taker = NoteTaker(pool)
    taker.wait(0.01)
    await until(lambda: taker.refused is not None)
    assert isinstance(taker.refused, QueryWaitTimeout)
    assert taker.refused.detail is not None
    assert "has 0 of 4 backends in this worker, 0 of them in use" in taker.refused.detail
    pool.maintain()
    assert hand.wants()
    await pool.close(ShuttingDown())
