"""Limits that span pools: who is evicted, who is blocked, and whose turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.pools import NoteTaker, Server, answer
from helpers.waiting import until
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, QueryWaitTimeout, ShuttingDown
from pgtrunk_gateway.pool.accounts import Account
from pgtrunk_gateway.pool.backend import BackendState

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool


class Sharing(Server):
    """Pools of one database, one for each user, that may have ``limit`` backends together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int, *users: str, **limits: Any) -> None:
        super().__init__(monkeypatch)
        self.account = Account("max_db_connections", limit)
        self.pools = [self.add("shop", user, accounts=(self.account,), **limits) for user in users]

    def asker(self, at: int) -> NoteTaker:
        """A session in the pool with this number that waits."""
        taker = NoteTaker(self.pools[at])
        if not taker.take():
            taker.wait()
        return taker

    async def close(self) -> None:
        for pool in (self.pool, *self.pools):
            await pool.close(ShuttingDown())
        assert (self.account.count, self.account.members, self.account.blocked) == (0, set(), {})


async def test_no_more_than_the_limit_over_all_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 3, "one", "two")
    for at in (0, 1, 0, 1, 0, 1):
        server.asker(at)
    await server.settle()
    assert (len(server.logins), server.account.count) == (3, 3)
    await server.answer()
    assert [len(pool.backends) for pool in server.pools] == [2, 1]
    await server.close()


async def test_the_longest_idle_backend_of_another_pool_is_closed_for_one_who_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = Sharing(monkeypatch, 3, "one", "two", "three")
    (old,) = await server.open(1, server.pools[0])
    (young, youngest) = await server.open(2, server.pools[1])
    old.idle_since -= 10
    asker = server.asker(2)
    assert list(server.pools[0].backends) == []
    assert "closing because: evicted" in caplog.text
    assert server.account.count == 3
    await server.answer()
    assert asker.backend is not None
    assert server.pools[1].idle == [young, youngest]
    await server.close()


async def test_what_is_leased_is_not_evicted_but_its_end_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 1, "one", "two")
    holder = server.asker(0)
    await server.answer()
    asker = server.asker(1)
    await server.settle()
    assert not server.logins
    assert list(server.account.blocked) == [server.pools[1]]
    holder.give_back()
    await server.answer()
    assert asker.backend is not None
    assert not server.pools[0].backends
    await server.close()


async def test_turns_go_to_those_who_have_waited_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 1, "one", "two", "three")
    holder = server.asker(0)
    await server.answer()
    third, second = server.asker(2), server.asker(1)
    # A clock that does not tell two moments apart would not tell who came first.
    server.pools[2].waiting[third].since -= 1
    assert holder.backend is not None
    holder.backend.connection_lost(None)
    await server.answer()
    assert third.backend is not None
    assert second.backend is None
    third.give_back()
    await server.answer()
    assert second.backend is not None
    await server.close()


async def test_a_pool_with_a_backend_serves_its_own_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each lease would cost a connection."""
    server = Sharing(monkeypatch, 2, "one", "two")
    first, second = server.asker(0), server.asker(1)
    await server.answer()
    backends = first.backend, second.backend
    others = [server.asker(at) for at in (1, 0)]
    first.give_back()
    second.give_back()
    await server.settle()
    assert (others[1].backend, others[0].backend) == backends
    assert server.begun == 2
    await server.close()


async def test_a_pool_without_any_backend_does_not_wait_for_the_others_to_be_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Sharing(monkeypatch, 1, "one", "two")
    holder = server.asker(0)
    await server.answer()
    starved, late = server.asker(1), server.asker(0)
    server.pools[1].waiting[starved].since -= 1
    holder.give_back()
    await server.answer()
    assert late.backend is None
    assert starved.backend is not None
    starved.give_back()
    await server.answer()
    assert late.backend is not None
    await server.close()


async def test_two_limits_are_both_kept_and_nobody_is_evicted_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    database, user = Account("max_db_connections", 2), Account("max_user_connections", 1)
    elsewhere = server.add("other", "app", accounts=(user,))
    beside = server.add("shop", "other", accounts=(database,))
    pool = server.add("shop", "app", accounts=(database, user))
    holder = NoteTaker(elsewhere)
    holder.wait()
    await server.answer()
    kept = await server.open(2, beside)
    asker = NoteTaker(pool)
    asker.wait()
    await server.settle()
    # The user's only place is leased, so closing one in the database would not help.
    assert (beside.idle, server.logins) == (kept, [])
    assert "max_db_connections = 2 is reached. max_user_connections = 1 is reached." in pool.full
    hasty = NoteTaker(pool)
    hasty.wait(0.01)
    await until(lambda: hasty.refused is not None)
    assert isinstance(hasty.refused, QueryWaitTimeout)
    assert "query_wait_timeout or max_db_connections and max_user_connections" in str(hasty.refused.hint)
    holder.give_back()
    await server.answer()
    assert asker.backend is not None
    assert (len(beside.backends), len(elsewhere.backends)) == (1, 0)
    assert (database.count, user.count) == (2, 1)
    for each in (server.pool, elsewhere, beside, pool):
        await each.close(ShuttingDown())
    assert (database.count, user.count) == (0, 0)


async def test_nobody_gives_way_to_one_who_lacks_more_than_that_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the pools in its way would go on closing their backends, and nobody would be served."""
    server = Server(monkeypatch)
    database, user = Account("max_db_connections", 1), Account("max_user_connections", 1)
    elsewhere = server.add("other", "app", accounts=(user,))
    beside = server.add("shop", "other", accounts=(database,))
    pool = server.add("shop", "app", accounts=(database, user))
    starved = NoteTaker(pool)
    for other in (elsewhere, beside):
        NoteTaker(other).wait()
        await server.answer()
    starved.wait()
    pool.waiting[starved].since -= 1
    late = NoteTaker(beside)
    late.wait()
    (backend,) = beside.backends.values()
    backend.release()
    assert late.backend is backend
    (backend,) = elsewhere.backends.values()
    backend.release()
    await server.settle()
    # Nobody waits there, and yet it is not closed: that would not help.
    assert elsewhere.idle == [backend]
    late.give_back()
    await server.answer()
    assert starved.backend is not None
    for each in (server.pool, elsewhere, beside, pool):
        await each.close(ShuttingDown())


async def test_a_backend_that_waits_to_be_checked_is_evicted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 1, "one", "two", check_query="", check_delay=0.0)
    holder = server.asker(0)
    await server.answer()
    (backend,) = server.pools[0].backends.values()
    answer(backend)
    assert holder.backend is backend
    server.asker(1)
    await server.settle()
    holder.give_back()
    await server.settle()
    assert (backend.state, len(server.logins)) == (BackendState.CLOSED, 1)
    await server.close()


async def test_a_minimum_evicts_nobody_but_is_reached_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 2, "one", "two", minimum=2)
    await server.open(2, server.pools[0])
    server.pools[1].maintain()
    await server.settle()
    assert not server.logins
    assert not server.account.blocked
    server.account.change(3)
    await server.answer()
    assert [len(pool.backends) for pool in server.pools] == [2, 1]
    await server.close()


@pytest.mark.parametrize(
    "error", [BackendUnavailable("connection refused"), BackendRefused("no", sqlstate="28P01")], ids=["down", "refused"]
)
async def test_a_connection_that_fails_takes_no_place(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    server = Sharing(monkeypatch, 1, "one", "two", retry=1000)
    asker = server.asker(0)
    await server.settle()
    other = server.asker(1)
    await server.answer(error, count=1)
    server.pools[0].leave(asker)
    await server.answer()
    assert other.backend is not None
    await server.close()


async def test_a_limit_that_is_lowered_is_reached_by_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 4, "one", "two")
    await server.open(4, server.pools[0])
    server.account.change(2)
    asker = server.asker(1)
    await server.answer()
    assert asker.backend is not None
    assert [len(pool.backends) for pool in server.pools] == [1, 1]
    await server.close()


async def test_a_limit_that_is_raised_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 1, "one", "two")
    server.asker(0)
    await server.answer()
    asker = server.asker(1)
    server.account.change(2)
    await server.answer()
    assert asker.backend is not None
    await server.close()


async def test_one_who_waits_no_more_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 1, "one", "two")
    holder = server.asker(0)
    await server.answer()
    asker = server.asker(1)
    server.pools[1].leave(asker)
    holder.give_back()
    await server.settle()
    assert server.begun == 1
    assert len(server.pools[0].idle) == 1
    assert not server.account.blocked
    await server.close()


async def test_a_pool_that_is_closed_frees_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 2, "one", "two")
    server.asker(0)
    await server.answer()
    server.asker(0)
    await server.settle()
    assert len(server.logins) == 1
    asker = server.asker(1)
    await server.pools[0].close(ShuttingDown())
    await server.answer()
    assert asker.backend is not None
    await server.close()


async def test_many_pools_and_one_place_serve_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sharing(monkeypatch, 1, *(f"user{number}" for number in range(10)))
    pools: list[Pool] = []
    askers = [server.asker(at) for at in (*range(10), *range(10))]
    for _ in askers:
        await server.answer()
        (served,) = [asker for asker in askers if asker.backend is not None]
        pools.append(served.pool)
        served.give_back()
        await server.settle()
    assert sorted(map(id, pools)) == sorted(map(id, [*server.pools, *server.pools]))
    assert server.account.count <= 1
    await server.close()


async def test_a_backend_that_ends_by_itself_meanwhile_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several have to go, the end of the first has its pool look at its others."""
    server = Sharing(monkeypatch, 3, "one", "two")
    await server.open(3, server.pools[0])
    assert len(server.pools[0].idle) == 3
    server.pools[0].idle[-1].expires = 0.0
    server.account.change(1)
    holder = server.asker(1)
    await server.answer()
    assert holder.backend is not None
    holder.give_back()
    await server.close()
