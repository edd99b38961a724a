"""The pool's shell: hand-over, waiting, opening in parallel, failures, ages, the end."""

from __future__ import annotations

import asyncio

import pytest

from helpers.pools import PARAMETERS, NoteTaker, Server
from helpers.waiting import until
from pgtrunk.wire import backend as server_messages
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, QueryWaitTimeout, ShuttingDown
from pgtrunk_gateway.session.parameters import Profile, profile


async def test_ten_who_wait_have_ten_connections_opened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PgBouncer opens one at a time (M1)."""
    server = Server(monkeypatch, size=20)
    takers = [NoteTaker(server.pool) for _ in range(10)]
    for taker in takers:
        assert not taker.take()
        taker.wait()
    await server.settle()
    assert len(server.logins) == 10
    await server.answer()
    assert all(taker.backend is not None for taker in takers)
    await server.pool.close(ShuttingDown())


async def test_no_more_than_the_pool_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=3)
    takers = [NoteTaker(server.pool) for _ in range(10)]
    for taker in takers:
        taker.wait()
    await server.answer()
    assert [taker.backend is not None for taker in takers] == [True] * 3 + [False] * 7
    assert server.begun == 3
    takers[0].give_back()
    assert takers[3].backend is not None
    await server.pool.close(ShuttingDown())


async def test_backends_go_to_those_who_wait_in_their_order_and_past_those_who_do_not_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch, size=1)
    (backend,) = await server.open()
    holder = NoteTaker(server.pool)
    assert holder.take()
    gone, second, third = NoteTaker(server.pool, accepts=False), NoteTaker(server.pool), NoteTaker(server.pool)
    for taker in (gone, second, third):
        taker.wait()
    holder.give_back()
    assert gone.offers == 1
    assert second.backend is backend
    assert backend.holder is second
    second.give_back()
    assert third.backend is backend
    await server.pool.close(ShuttingDown())


async def test_a_backend_that_all_refuse_is_idle_and_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    (backend,) = await server.open()
    holder, gone = NoteTaker(server.pool), NoteTaker(server.pool, accepts=False)
    assert holder.take()
    gone.wait()
    holder.give_back()
    assert backend.holder is None
    assert server.pool.idle == [backend]
    await server.pool.close(ShuttingDown())


async def test_nobody_overtakes_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    first, late = NoteTaker(server.pool), NoteTaker(server.pool)
    first.wait()
    assert not late.take()
    await server.answer()
    assert first.backend is not None
    await server.pool.close(ShuttingDown())


async def test_the_one_used_last_is_the_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    backends = await server.open(3)
    taker = NoteTaker(server.pool)
    assert taker.take()
    assert taker.backend is backends[-1]
    await server.pool.close(ShuttingDown())


async def test_waiting_ends_with_words_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    await server.open()
    holder, patient, hasty = NoteTaker(server.pool), NoteTaker(server.pool), NoteTaker(server.pool)
    assert holder.take()
    patient.wait(60)
    hasty.wait(0.01)
    await until(lambda: hasty.refused is not None)
    assert isinstance(hasty.refused, QueryWaitTimeout)
    assert (hasty.refused.sqlstate, hasty.refused.severity) == ("53300", "ERROR")
    assert "1 of 1 backends, 1 of them in use; 1 more sessions wait" in str(hasty.refused.detail)
    assert "default_pool_size" in str(hasty.refused.hint)
    assert patient.refused is None
    assert list(server.pool.waiting) == [patient]
    await server.pool.close(ShuttingDown())


async def test_who_leaves_is_not_offered_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=1)
    taker = NoteTaker(server.pool)
    taker.wait()
    server.pool.leave(taker)
    await server.answer()
    assert (taker.offers, taker.refused) == (0, None)
    assert len(server.pool.idle) == 1
    await server.pool.close(ShuttingDown())


async def test_a_refused_login_is_told_to_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=2)
    takers = [NoteTaker(server.pool) for _ in range(3)]
    for taker in takers:
        taker.wait()
    error = BackendRefused('database "shop" does not exist', sqlstate="3D000")
    await server.answer(error, count=1)
    assert [taker.refused for taker in takers] == [error] * 3
    await server.pool.close(ShuttingDown())


@pytest.mark.parametrize("sqlstate", ["57P03", "53300"])
async def test_a_server_that_starts_or_is_full_is_waited_for(monkeypatch: pytest.MonkeyPatch, sqlstate: str) -> None:
    server = Server(monkeypatch, retry=0.01)
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer(BackendRefused("not now", sqlstate=sqlstate))
    await until(lambda: server.logins)
    await server.answer()
    assert taker.backend is not None
    await server.pool.close(ShuttingDown())


async def test_a_server_that_is_down_is_tried_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, retry=0.02)
    taker = NoteTaker(server.pool)
    taker.wait()
    for _ in range(3):
        await until(lambda: server.logins)
        await server.answer(BackendUnavailable("connection refused"))
        assert taker.refused is None
    await until(lambda: server.logins)
    await server.answer()
    assert taker.backend is not None
    assert server.pool.counters.failed == 3
    await server.pool.close(ShuttingDown())


async def test_the_first_login_greets_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    greetings = [asyncio.ensure_future(server.pool.greet()) for _ in range(3)]
    await server.answer()
    assert [await greeting for greeting in greetings] == [PARAMETERS] * 3
    assert server.begun == 1
    assert await server.pool.greet() == PARAMETERS
    await server.pool.close(ShuttingDown())


async def test_a_client_hears_why_the_first_login_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    greeting = asyncio.ensure_future(server.pool.greet())
    await server.answer(BackendRefused("no such role", sqlstate="28000"))
    with pytest.raises(BackendRefused):
        await greeting
    await server.pool.close(ShuttingDown())


async def test_a_client_that_logs_in_waits_for_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, retry=0.01)
    greeting = asyncio.ensure_future(server.pool.greet())
    await server.answer(BackendUnavailable("connection refused"))
    await until(lambda: server.logins)
    assert not greeting.done()
    assert server.pool.trouble == " The last connection failed: connection refused."
    await server.answer()
    assert await greeting == PARAMETERS
    await server.pool.close(ShuttingDown())


async def test_a_client_that_gives_up_its_login_leaves_nothing_that_is_connected_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch, retry=0.01)
    greeting = asyncio.ensure_future(server.pool.greet())
    await server.settle()
    greeting.cancel()
    await server.answer(BackendRefused("starting up", sqlstate="57P03"))
    await asyncio.sleep(0.05)
    assert server.begun == 1
    await server.pool.close(ShuttingDown())


async def test_a_lifetime_of_zero_is_one_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, lifetime=0.0)
    taker = NoteTaker(server.pool)
    taker.wait()
    await server.answer()
    assert taker.backend is not None
    taker.give_back()
    assert not server.pool.backends
    assert server.transports[0].closing
    await server.pool.close(ShuttingDown())


async def test_the_minimum_is_opened_and_what_is_lost_of_it_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, minimum=2)
    server.pool.maintain()
    await server.answer()
    assert len(server.pool.idle) == 2
    server.pool.idle[0].connection_lost(None)
    await server.answer()
    assert len(server.pool.idle) == 2
    assert server.begun == 3
    await server.pool.close(ShuttingDown())


async def test_several_that_are_old_are_closed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    for backend in await server.open(3):
        backend.expires = 0.0
    server.pool.maintain()
    assert not server.pool.backends
    assert all(transport.closing for transport in server.transports)
    await server.pool.close(ShuttingDown())


async def test_a_holder_hears_of_its_backends_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    (backend,) = await server.open()
    taker = NoteTaker(server.pool)
    assert taker.take()
    backend.data_received(server_messages.error("57P01", "terminating connection", severity="FATAL"))
    backend.connection_lost(None)
    assert taker.lost is not None
    assert taker.lost.sqlstate == "08006"
    assert taker.told
    assert b"".join(taker.received).startswith(b"E")
    assert not server.pool.backends
    await server.pool.close(ShuttingDown())


async def test_closing_refuses_ends_and_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=3)
    await server.open()
    holder, waiter = NoteTaker(server.pool), NoteTaker(server.pool)
    assert holder.take()
    waiter.wait()
    greeting = asyncio.ensure_future(server.pool.greet())
    await server.settle()
    assert server.logins
    await server.pool.close(ShuttingDown())
    assert isinstance(waiter.refused, ShuttingDown)
    assert holder.lost is not None
    assert await greeting == PARAMETERS
    assert not server.logins
    assert len(asyncio.all_tasks()) == 1


# -- which one ---------------------------------------------------------------------------------------------------------


def set_to(zone: str) -> Profile:
    return profile({**PARAMETERS, "TimeZone": zone})


async def test_a_backend_that_has_the_settings_already_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    first, second, third = await server.open(3)
    first.profile, second.profile, third.profile = set_to("UTC"), set_to("Asia/Tokyo"), set_to("UTC")
    for zone, expected in (("Asia/Tokyo", second), ("UTC", third), ("Europe/Berlin", third)):
        taker = NoteTaker(server.pool)
        taker.profile = set_to(zone)
        assert taker.take()
        assert taker.backend is expected
        assert (expected.holder, expected.lease) == (taker, expected.lease)
        taker.give_back()
        # The others keep their order: it says how long they have been idle.
        assert [one for one in server.pool.idle if one is not expected] == [
            one for one in (first, second, third) if one is not expected
        ]
        server.pool.idle[:] = [first, second, third]
    await server.pool.close(ShuttingDown())


async def test_it_is_not_looked_for_among_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, size=100)
    backends = await server.open(100)
    for backend in backends:
        backend.profile = set_to("UTC")
    backends[10].profile = backends[90].profile = set_to("Asia/Tokyo")
    for expected in (backends[90], backends[-1]):
        taker = NoteTaker(server.pool)
        taker.profile = set_to("Asia/Tokyo")
        assert taker.take()
        assert taker.backend is expected
    await server.pool.close(ShuttingDown())
