"""What the pools of one server learn from each other's connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.pools import PARAMETERS, NoteTaker, Server
from helpers.waiting import until
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, GatewayError, ShuttingDown
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.pool import Pool

DOWN = BackendUnavailable("connection refused")
STARTING = BackendRefused("the database system is starting up", sqlstate="57P03")


class Neighbours(Server):
    """Three pools on one server, with ``retry`` as the longest pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, retry: float = 0.01, **limits: Any) -> None:
        super().__init__(monkeypatch)
        self.host = Host(lambda: retry)
        self.pools = [self.add("shop", name, host=self.host, retry=retry, **limits) for name in ("a", "b", "c")]

    def ask(self) -> list[NoteTaker]:
        """Two sessions wait in each pool."""
        takers = [NoteTaker(pool) for pool in self.pools for _ in range(2)]
        for taker in takers:
            taker.wait()
        return takers

    async def close(self) -> None:
        for pool in (self.pool, *self.pools):
            await pool.close(ShuttingDown())
        assert not self.host.tenants


@pytest.mark.parametrize("error", [DOWN, STARTING], ids=["refused", "starting"])
async def test_one_tries_for_all_and_its_success_is_everybodys(
    monkeypatch: pytest.MonkeyPatch, error: GatewayError
) -> None:
    server = Neighbours(monkeypatch)
    takers = server.ask()
    await server.settle()
    assert len(server.logins) == 6
    await server.answer(error)
    assert server.host.backoff.failures == 1
    for round_ in range(3):
        await until(lambda: server.logins)
        await server.settle()
        assert len(server.logins) == 1
        await server.answer(error)
        assert server.host.backoff.failures == 2 + round_
    assert not any(taker.refused for taker in takers)
    await until(lambda: server.logins)
    await server.answer()
    # All of the others at once, in parallel.
    assert len(server.logins) == 5
    await server.answer()
    assert all(taker.backend is not None for taker in takers)
    await server.close()


async def test_a_pool_that_asks_while_the_server_is_down_waits_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Neighbours(monkeypatch, retry=1000)
    NoteTaker(server.pools[0]).wait()
    await server.answer(DOWN)
    NoteTaker(server.pools[1]).wait()
    await server.settle()
    assert not server.logins
    await server.close()


async def test_a_server_that_refuses_one_login_is_up_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Neighbours(monkeypatch)
    takers = server.ask()
    await server.answer(DOWN)
    await until(lambda: server.logins)
    await server.answer(BackendRefused("no such role", sqlstate="28000"))
    refused = {taker.pool for taker in takers if taker.refused is not None}
    assert len(refused) == 1
    await server.answer()
    assert all(taker.backend is not None for taker in takers if taker.pool not in refused)
    await server.close()


async def test_what_is_one_logins_fault_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Neighbours(monkeypatch, retry=1000)
    first, second = NoteTaker(server.pools[0]), NoteTaker(server.pools[1])
    first.wait()
    await server.answer(BackendRefused("too many connections for role", sqlstate="53300"))
    assert first.refused is None
    second.wait()
    await server.answer()
    assert second.backend is not None
    await server.close()


@pytest.mark.parametrize("verb", [Pool.pause, lambda pool: pool.kill(ShuttingDown())], ids=["pause", "kill"])
async def test_a_pool_that_gives_its_attempt_up_lets_another_try(monkeypatch: pytest.MonkeyPatch, verb: Any) -> None:
    server = Neighbours(monkeypatch)
    takers = server.ask()
    await server.answer(DOWN)
    await until(lambda: server.logins)
    (trying,) = [pool for pool in server.pools if pool.connecting]
    verb(trying)
    await until(lambda: [pool for pool in server.pools if pool.connecting and pool is not trying])
    await server.settle()
    await server.answer()
    await server.answer()
    assert all(taker.backend is not None for taker in takers if taker.pool is not trying)
    await server.close()


# -- the first login ---------------------------------------------------------------------------------------------------


async def test_who_logs_in_while_a_server_restarts_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Neighbours(monkeypatch)
    await server.open(1, server.pools[0])
    greeting = asyncio.ensure_future(server.pools[1].greet())
    for error in (DOWN, STARTING):
        await until(lambda: server.logins)
        await server.answer(error)
    assert not greeting.done()
    assert server.pools[1].trouble == " The last connection failed: the database system is starting up."
    await until(lambda: server.logins)
    await server.answer()
    assert await greeting == PARAMETERS
    await server.close()


async def test_the_server_is_asked_no_more_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Neighbours(monkeypatch)
    takers = server.ask()
    await server.answer(DOWN)
    for taker in takers:
        taker.pool.leave(taker)
    await server.answer(DOWN)
    begun = server.begun
    await asyncio.sleep(0.05)
    assert server.begun == begun
    await server.close()


async def test_a_fault_of_ours_is_a_failure_like_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for ever for a connection that nobody opens any more."""
    server = Neighbours(monkeypatch)
    pool, holder = server.pools[0], NoteTaker(server.pools[0])
    holder.wait()
    await server.settle()
    server.logins[0].set_exception(ValueError("a fault"))
    await server.settle()
    assert (pool.connecting, pool.counters.failed) == (0, 1)
    assert "ValueError: a fault" in caplog.text
    await until(lambda: bool(server.logins))
    await server.answer()
    assert holder.backend is not None
    await server.close()
