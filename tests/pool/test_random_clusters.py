"""Clusters in which anything may happen: whatever came before, sessions are served by the primary once there is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cluster import DOWN, NAMES, PRIMARY, READ_ONLY, STANDBY, FakeCluster, where
from helpers.pools import NoteTaker
from helpers.waiting import until
from pgtrunk.wire import backend as b
from pgtrunk_gateway.errors import BackendRefused, ShuttingDown
from pgtrunk_gateway.session import owed

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool

FULL = BackendRefused("sorry, too many clients already", sqlstate="53300")
KINDS = st.sampled_from([PRIMARY, STANDBY, READ_ONLY, DOWN, FULL])
EVENTS = st.one_of(
    st.tuples(st.just("becomes"), st.sampled_from(NAMES), KINDS),
    st.tuples(st.just("stops"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("asks"), st.integers(0, 1), st.none()),
    st.tuples(st.just("gives back"), st.integers(0, 5), st.none()),
    st.tuples(st.just("refuses"), st.integers(0, 5), st.none()),
    st.tuples(st.just("passes"), st.none(), st.none()),
)
SIZE = 3


@settings(max_examples=60)
@given(events=st.lists(EVENTS, max_size=30), primary=st.sampled_from(NAMES))
def test_in_the_end_everybody_is_at_the_primary(events: list[tuple[str, object, object]], primary: str) -> None:
    asyncio.run(live(events, primary))


@pytest.mark.long
@settings(max_examples=3000)
@given(events=st.lists(EVENTS, max_size=60), primary=st.sampled_from(NAMES))
def test_in_the_end_everybody_is_at_the_primary_each_time(
    events: list[tuple[str, object, object]], primary: str
) -> None:
    asyncio.run(live(events, primary))


async def live(events: list[tuple[str, object, object]], primary: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cluster = FakeCluster(patch, PRIMARY, STANDBY, STANDBY)
        servers = cluster.servers("read-write", retry=0.001)
        pools = [cluster.pool(servers, name, size=SIZE, retry=0.001) for name in ("x", "y")]
        takers: list[NoteTaker] = []
        try:
            for what, which, how in events:
                await happen(cluster, pools, takers, what, which, how)
                assert all(len(pool.backends) + pool.connecting <= SIZE for pool in pools)
            # Now there is one primary, and no doubt about it.
            for name in NAMES:
                cluster.kinds[name] = PRIMARY if name == primary else STANDBY
            # Nobody becomes a standby without a restart.
            stop(pools, {*NAMES} - {primary})
            for taker in takers:
                if taker.backend is not None:
                    taker.give_back()
            late = [NoteTaker(pool) for pool in pools for _ in range(2 * SIZE)]
            for taker in late:
                if not taker.take():
                    taker.wait()
            await until(lambda: serve([*late, *takers]), 10.0)
            for pool in pools:
                assert set(where(pool)) <= {primary}
        finally:
            for pool in pools:
                await pool.close(ShuttingDown())
            assert not any(pool.backends or pool.connecting for pool in pools)


def serve(takers: list[NoteTaker]) -> bool:
    """Whether all have had a backend, or were told why not. Who has one gives it back."""
    for taker in takers:
        if taker.backend is not None:
            taker.give_back()
            taker.settles += 1
    return not any(taker in taker.pool.waiting for taker in takers)


async def happen(
    cluster: FakeCluster, pools: list[Pool], takers: list[NoteTaker], what: str, which: object, how: object
) -> None:
    match what:
        case "becomes":
            assert isinstance(which, str)
            cluster.kinds[which] = how  # type: ignore[assignment]
        case "stops":
            assert isinstance(which, str)
            cluster.kinds[which] = DOWN
            stop(pools, {which})
        case "asks":
            assert isinstance(which, int)
            taker = NoteTaker(pools[which])
            if not taker.take():
                taker.wait()
            takers.append(taker)
        case "gives back" | "refuses":
            assert isinstance(which, int)
            holding = [taker for taker in takers if taker.backend is not None]
            if which < len(holding):
                taker = holding[which]
                if what == "refuses" and taker.backend is not None:
                    taker.backend.replies.push(owed.QUERY)
                    taker.backend.data_received(b.error("25006", "cannot execute INSERT") + b.ready())
                taker.give_back()
        case _:
            await asyncio.sleep(0.002)


def stop(pools: list[Pool], names: set[str]) -> None:
    """These servers have ended all their connections."""
    for pool in pools:
        for backend in list(pool.backends.values()):
            if backend.target.host in names:
                backend.data_received(b.error("57P01", "terminating connection", severity="FATAL"))
                backend.connection_lost(None)
