"""Which server of a list a pool is at: the one that is asked for, however often that is another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from helpers.cluster import DOWN, PRIMARY, READ_ONLY, STANDBY, FakeCluster, where
from helpers.pools import NoteTaker
from helpers.waiting import until
from pgtrunk.wire import backend as b
from pgtrunk_gateway.config.entries import Place
from pgtrunk_gateway.errors import BackendRefused, ShuttingDown
from pgtrunk_gateway.pool import primary as primary_module
from pgtrunk_gateway.session import owed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgtrunk_gateway.config.entries import LoadBalance, SessionAttrs
    from pgtrunk_gateway.pool.pool import Pool

STARTING = BackendRefused("the database system is starting up", sqlstate="57P03")
FULL = BackendRefused("sorry, too many clients already", sqlstate="53300")
WRONG = BackendRefused("password authentication failed", sqlstate="28P01")
REFUSED = b.error("25006", "cannot execute INSERT in a read-only transaction") + b.ready()


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    """Its first server is the primary; the others follow it."""
    cluster = FakeCluster(monkeypatch, PRIMARY, STANDBY, STANDBY)
    yield cluster
    for pool in cluster.pools:
        await pool.close(ShuttingDown())


async def ask(pool: Pool, count: int = 1) -> list[NoteTaker]:
    """So many sessions, each of which has a backend."""
    takers = [NoteTaker(pool) for _ in range(count)]
    for taker in takers:
        if not taker.take():
            taker.wait()
    await until(lambda: all(taker.backend is not None for taker in takers))
    return takers


# -- which server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attrs", "asked"),
    [
        ("primary", {"a"}),
        ("read-write", {"a"}),
        ("standby", {"ab"}),
        ("read-only", {"ab"}),
        ("prefer-standby", {"ab"}),
        ("any", {"a"}),
    ],
)
async def test_the_first_that_will_do(cluster: FakeCluster, attrs: SessionAttrs, asked: set[str]) -> None:
    pool = cluster.pool(cluster.servers(attrs))
    await ask(pool)
    assert cluster.asked() in asked
    assert where(pool) == max(asked)[-1]


async def test_what_is_something_else_is_told_good_bye(cluster: FakeCluster) -> None:
    await ask(cluster.pool(cluster.servers("standby")))
    first, second = cluster.transports
    assert (first.take(), first.closing) == (b"X\0\0\0\4", True)
    assert not second.closing


async def test_one_looks_for_all(cluster: FakeCluster) -> None:
    cluster.kinds |= {"a": STANDBY, "b": PRIMARY}
    servers = cluster.servers()
    pools = [cluster.pool(servers, user) for user in ("x", "y")]
    takers = [NoteTaker(pool) for pool in pools for _ in range(3)]
    for taker in takers:
        taker.wait()
    await until(lambda: all(taker.backend is not None for taker in takers))
    assert cluster.asked() == "ab" + "b" * 5
    assert [where(pool) for pool in pools] == ["bbb", "bbb"]


@pytest.mark.parametrize(
    ("balance", "expected"), [("round-robin", "abcabc"), ("disable", "aaaaaa")], ids=["round-robin", "disable"]
)
async def test_connections_are_spread_or_not(cluster: FakeCluster, balance: LoadBalance, expected: str) -> None:
    pool = cluster.pool(cluster.servers("any", balance))
    await ask(pool, 6)
    assert cluster.asked() == expected


async def test_standbys_take_turns(cluster: FakeCluster) -> None:
    pool = cluster.pool(cluster.servers("standby"))
    for _ in range(4):
        await ask(pool)
    assert where(pool) == "bbcc"


async def test_without_a_standby_a_primary_is_preferred_to_nothing(cluster: FakeCluster) -> None:
    cluster.kinds |= {"b": DOWN, "c": DOWN}
    servers = cluster.servers("prefer-standby", retry=1000)
    pool = cluster.pool(servers)
    await ask(pool)
    # Each of them once; the primary first as it may be a standby, then as it is.
    assert cluster.asked() == "abca"
    for server in servers.servers[1:]:
        server.backoff.retry_at = float("inf")
    await ask(pool)
    assert cluster.asked() == "a"
    assert where(pool) == "aa"


@pytest.mark.parametrize("error", [DOWN, STARTING, FULL], ids=["refused", "starting", "full"])
async def test_who_cannot_be_had_is_passed_over(cluster: FakeCluster, error: BackendRefused) -> None:
    cluster.kinds["a"] = error
    pool = cluster.pool(cluster.servers("any", "disable"))
    await ask(pool, 2)
    assert where(pool) == "bb"


async def test_what_is_refused_for_good_is_refused_at_once(cluster: FakeCluster) -> None:
    cluster.kinds["a"] = WRONG
    taker = NoteTaker(cluster.pool(cluster.servers()))
    taker.wait()
    await until(lambda: taker.refused)
    assert taker.refused is WRONG
    assert cluster.asked() == "a"


async def test_a_primary_that_is_full_is_waited_for_and_nobody_else_asked(cluster: FakeCluster) -> None:
    pool = cluster.pool(cluster.servers())
    await ask(pool)
    cluster.asked()
    cluster.kinds["a"] = FULL
    taker = NoteTaker(pool)
    taker.wait()
    await until(lambda: len(cluster.logins) >= 3)
    assert set(cluster.asked()) == {"a"}
    cluster.kinds["a"] = PRIMARY
    await until(lambda: taker.backend)


async def test_where_none_will_do_the_error_says_what_each_is(cluster: FakeCluster) -> None:
    cluster.kinds = {"a": DOWN, "b": STANDBY}
    pool = cluster.pool(cluster.servers())
    NoteTaker(pool).wait()
    await until(lambda: pool.trouble)
    assert "connection refused; b:5432 is a standby" in pool.trouble


async def test_an_empty_list_waits_for_its_first_server(cluster: FakeCluster) -> None:
    servers = cluster.servers()
    servers.change([])
    pool = cluster.pool(servers)
    taker = NoteTaker(pool)
    taker.wait()
    await until(lambda: "no server is named yet" in pool.trouble)
    servers.change([Place("a", 5432)])
    await until(lambda: taker.backend)


# -- when it changes ---------------------------------------------------------------------------------------------------


async def test_a_promotion_is_waited_for(cluster: FakeCluster) -> None:
    """Sessions that ask meanwhile get their backend when there is a primary again; what was idle is replaced."""
    pool = cluster.pool(cluster.servers())
    (first,) = await ask(pool)
    cluster.kinds["a"] = DOWN
    assert first.backend is not None
    first.backend.data_received(b.error("57P01", "terminating connection", severity="FATAL"))
    first.backend.connection_lost(None)
    takers = [NoteTaker(pool) for _ in range(5)]
    for taker in takers:
        taker.wait()
    cluster.asked()
    await until(lambda: len(cluster.logins) >= 9)
    # In rounds: as one connection, and each server once.
    rounds = cluster.asked()
    assert {rounds.count(name) for name in "abc"} <= {len(rounds) // 3, len(rounds) // 3 + 1}
    assert not any(taker.backend or taker.refused for taker in takers)
    cluster.kinds["b"] = PRIMARY
    await until(lambda: all(taker.backend is not None for taker in takers))
    assert where(pool) == "bbbbb"


async def test_where_the_primary_has_moved_nobody_stays_behind(cluster: FakeCluster) -> None:
    """The old one hangs for new connections, and its backends know of nothing. Another pool finds it out."""
    servers = cluster.servers()
    pool, other = cluster.pool(servers), cluster.pool(servers, "other")
    busy, *idle = await ask(pool, 3)
    for taker in idle:
        taker.give_back()
    cluster.kinds |= {"a": DOWN, "b": PRIMARY}
    await ask(other)
    assert (where(pool), where(other)) == ("a", "b")
    # The end of the lease is the end of the backend.
    busy.give_back()
    assert where(pool) == ""


async def test_a_primary_that_is_back_as_a_standby_is_left_alone(cluster: FakeCluster) -> None:
    pool = cluster.pool(cluster.servers())
    await ask(pool)
    cluster.kinds |= {"a": STANDBY, "b": PRIMARY}
    cluster.asked()
    await ask(pool)
    assert cluster.asked() == "ab"
    for _ in range(3):
        await ask(pool)
    assert cluster.asked() == "bbb"
    # The lease from before is over some day, and with it the backend.
    assert where(pool) == "abbbb"


async def test_a_refusal_to_write_has_the_server_asked_anew(cluster: FakeCluster) -> None:
    """In the place of the backend that was refused, so that there is not one more than before."""
    pool = cluster.pool(cluster.servers("read-write"), size=1)
    (taker,) = await ask(pool)
    cluster.kinds |= {"a": READ_ONLY, "b": PRIMARY}
    cluster.asked()
    told(taker, REFUSED)
    taker.give_back()
    await until(lambda: where(pool) == "b")
    assert cluster.asked() == "ab"


async def test_a_session_that_is_read_only_itself_costs_a_login_now_and_then(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_module, "_DOUBTED_FIRST", 1000.0)
    pool = cluster.pool(cluster.servers("read-write"), size=1)
    for _ in range(5):
        (taker,) = await ask(pool)
        told(taker, REFUSED)
        taker.give_back()
    await until(lambda: len(pool.idle) == 1)
    assert cluster.asked() == "aa"


async def test_a_refusal_to_write_is_no_news_of_a_standby(cluster: FakeCluster) -> None:
    pool = cluster.pool(cluster.servers("standby"), size=1)
    (taker,) = await ask(pool)
    cluster.asked()
    told(taker, REFUSED)
    taker.give_back()
    assert (where(pool), cluster.asked()) == ("b", "")


@pytest.mark.parametrize("attrs", ["standby", "read-only"])
async def test_a_standby_that_says_it_is_none_any_more_is_left(cluster: FakeCluster, attrs: SessionAttrs) -> None:
    pool = cluster.pool(cluster.servers(attrs, "disable"))
    takers = await ask(pool, 3)
    takers[0].give_back()
    takers[1].give_back()
    assert where(pool) == "bbb"
    cluster.kinds |= {"a": STANDBY, "b": PRIMARY}
    told(takers[2], b.parameter_status("in_hot_standby", "off") + b.command_complete("SELECT 1") + b.ready())
    assert where(pool) == "b"
    takers[2].give_back()
    await ask(pool)
    assert where(pool) in ("a", "c")


async def test_settings_of_a_session_say_nothing_about_its_server(cluster: FakeCluster) -> None:
    pool = cluster.pool(cluster.servers("read-write"))
    (taker,) = await ask(pool)
    told(taker, b.parameter_status("default_transaction_read_only", "on") + b.command_complete("SET") + b.ready())
    taker.give_back()
    assert (where(pool), cluster.asked()) == ("a", "a")


async def test_another_list_takes_over_at_once(cluster: FakeCluster) -> None:
    """As Patroni has it: backends at a server that is not in it go, and so does what was being opened."""
    cluster.kinds = {"a": PRIMARY, "b": PRIMARY}
    servers = cluster.servers()
    servers.change([Place("a", 5432)])
    pool, other = cluster.pool(servers), cluster.pool(servers, "other")
    busy, idle = await ask(pool, 2)
    idle.give_back()
    cluster.asked()
    cluster.gate = asyncio.Event()
    late = NoteTaker(other)
    late.wait()
    await until(lambda: cluster.logins == ["a"])
    servers.change([Place("b", 5432)])
    await until(lambda: cluster.logins == ["a", "b"])
    assert where(pool) == "a"
    cluster.gate.set()
    await until(lambda: late.backend)
    busy.give_back()
    assert (where(pool), where(other)) == ("", "b")


async def test_the_same_list_is_no_change(cluster: FakeCluster) -> None:
    servers = cluster.servers()
    pool = cluster.pool(servers)
    await ask(pool)
    known = servers.servers
    servers.change(cluster.places)
    assert servers.servers is known
    assert where(pool) == "a"


def told(taker: NoteTaker, message: bytes) -> None:
    """The server answers so to a query of this session."""
    assert taker.backend is not None
    taker.backend.replies.push(owed.QUERY)
    taker.backend.data_received(message)
