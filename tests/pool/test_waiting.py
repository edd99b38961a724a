"""Who waits: in what order, until when, and what is told to them meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from helpers.pools import NoteTaker, Server
from helpers.waiting import until
from pgtrunk_gateway.errors import GatewayError, QueryWaitTimeout, ShuttingDown
from pgtrunk_gateway.pool.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.pool.pool import Pool


class Queue(Waiting):
    """``late`` counts how often somebody was found to be overdue."""

    def __init__(self, *, notify: float = 0.0, patience: float = 0.0) -> None:
        super().__init__(refusal=QueryWaitTimeout, overdue=self._note)
        self.configure(notify=notify, patience=patience)
        self.late = 0

    def _note(self) -> None:
        self.late += 1

    def add(self, timeout: float = 1000.0) -> NoteTaker:
        holder = NoteTaker(cast("Pool", None))
        self.join(holder, timeout)
        return holder


async def test_each_is_told_once_that_it_waits() -> None:
    queue = Queue(notify=0.02)
    first = queue.add()
    await until(lambda: first.notified)
    second = queue.add()
    await until(lambda: second.notified)
    assert (first.notified, second.notified) == (1, 1)
    queue.end(ShuttingDown())


async def test_one_who_has_been_told_is_told_again_the_next_time() -> None:
    queue = Queue(notify=0.01)
    holder = queue.add()
    await until(lambda: holder.notified == 1)
    del queue.holders[holder]
    queue.join(holder, 1000)
    await until(lambda: holder.notified == 2)
    queue.end(ShuttingDown())


async def test_one_who_waits_for_a_short_time_is_not_told() -> None:
    queue = Queue(notify=1000)
    holder = queue.add(0.01)
    await until(lambda: holder.refused is not None)
    assert holder.notified == 0
    assert not queue.holders


async def test_notices_and_deadlines_do_not_get_in_each_others_way() -> None:
    queue = Queue(notify=0.02)
    hasty, patient = queue.add(0.05), queue.add()
    await until(lambda: hasty.refused is not None)
    assert (hasty.notified, patient.notified, patient.refused) == (1, 1, None)
    queue.end(ShuttingDown())
    assert isinstance(patient.refused, ShuttingDown)


async def test_how_many_are_overdue() -> None:
    queue = Queue(patience=10)
    for waited in (30, 20, 5):
        queue.holders[queue.add()].since -= waited
    now = asyncio.get_running_loop().time()
    assert [queue.overdue(now + later) for later in (-15, -5, 0, 10)] == [1, 2, 2, 3]
    queue.end(ShuttingDown())


async def test_the_first_who_is_overdue_is_noticed_in_time_and_once() -> None:
    queue = Queue(patience=0.02)
    queue.add()
    await until(lambda: queue.late)
    await asyncio.sleep(0.05)
    assert queue.late == 1
    queue.end(ShuttingDown())


async def test_while_time_stands_still_nobody_is_refused_or_told() -> None:
    queue = Queue(notify=0.02)
    before = queue.add(0.03)
    queue.stop()
    during = queue.add(0.03)
    await asyncio.sleep(0.1)
    assert [before.refused, during.refused, before.notified, during.notified] == [None, None, 0, 0]
    queue.go_on()
    await until(lambda: before.refused is not None and during.refused is not None)
    assert (before.notified, during.notified) == (1, 1)


async def test_other_times_hold_for_those_who_wait_already() -> None:
    queue = Queue()
    holder = queue.add()
    await asyncio.sleep(0.01)
    queue.configure(notify=0.01, patience=0)
    await until(lambda: holder.notified)
    queue.end(ShuttingDown())


async def test_one_whose_end_takes_others_along() -> None:
    queue = Queue()
    other: list[NoteTaker] = []

    class Leader(NoteTaker):
        def refuse(self, error: GatewayError) -> None:
            super().refuse(error)
            queue.holders.pop(other[0])

    leader = Leader(cast("Pool", None))
    queue.join(leader, 0.01)
    other.append(queue.add(0.01))
    await until(lambda: leader.refused is not None)
    await asyncio.sleep(0.02)
    assert other[0].refused is None


# -- the reserve -------------------------------------------------------------------------------------------------------


async def test_the_reserve_is_opened_when_somebody_has_waited_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(monkeypatch, size=2, reserve=2, reserve_timeout=0.05)
    takers = [NoteTaker(server.pool) for _ in range(5)]
    for taker in takers:
        taker.wait()
    await server.answer()
    assert server.begun == 2
    await until(lambda: server.logins)
    await server.answer()
    assert [taker.backend is not None for taker in takers] == [True] * 4 + [False]
    assert caplog.text.count("taking connection from reserve_pool") == 2
    # What is there is kept as long as it is used.
    takers[0].give_back()
    assert takers[4].backend is not None
    assert len(server.pool.backends) == 4
    await server.pool.close(ShuttingDown())


async def test_nobody_who_is_served_in_time_touches_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1, reserve=1, reserve_timeout=0.05)
    (backend,) = await server.open()
    holder, waiter = NoteTaker(server.pool), NoteTaker(server.pool)
    assert holder.take()
    waiter.wait()
    holder.give_back()
    assert waiter.backend is backend
    await asyncio.sleep(0.1)
    assert server.begun == 1
    await server.pool.close(ShuttingDown())


async def test_a_moment_that_is_all_but_here_keeps_nobody_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop hands out a plain handle then, which cannot say when it will call: it does so at once."""
    loop, queue = asyncio.get_running_loop(), Queue()
    call_at = loop.call_at

    def call(when: float, callback: Callable[..., object], *args: object, **options: Any) -> asyncio.Handle:
        ours = getattr(callback, "__self__", None) is queue
        return loop.call_soon(callback) if ours else call_at(when, callback, *args, **options)

    monkeypatch.setattr(loop, "call_at", call)
    later, sooner = queue.add(0.002), queue.add(0.001)
    await until(lambda: later.refused is not None)
    assert isinstance(sooner.refused, QueryWaitTimeout)
    assert not queue.holders
