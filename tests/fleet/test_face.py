"""Commands at one worker's console that the whole fleet obeys, and what each of them does when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helpers.consoles import error, tags
from helpers.crews import Crew, ask, look
from helpers.waiting import until
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.errors import ConfigError, GatewayError
from pgtrunk_gateway.fleet import changing, deeds, face
from pgtrunk_gateway.stopping import Patience


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    """Three workers."""
    async with Crew(tmp_path, 3) as crew:
        yield crew


async def busy(crew: Crew, index: int) -> asyncio.Event:
    """A worker with sessions that hold backends, until the event is set."""
    at_rest = asyncio.Event()
    pools: Any = crew[index].gateway.pools

    async def wait(database: str | None = None) -> None:
        await at_rest.wait()

    pools.wait_idle = pools.wait_closed = wait
    return at_rest


# -- pausing -----------------------------------------------------------------------------------------------------------


async def test_a_pause_is_everywhere(crew: Crew) -> None:
    one, two = await crew[0].enter(), await crew[2].enter()
    assert tags(await ask(one, "PAUSE")) == ["PAUSE"]
    assert crew.states == ["paused"] * 3 and crew.face.state == "paused"
    assert [row["value"] for row in await look(two, "SHOW STATE")] == ["no", "yes", "no"]
    assert error(await ask(two, "PAUSE")).message == "already suspended/paused"
    assert tags(await ask(two, "RESUME")) == ["RESUME"]
    assert crew.states == ["active"] * 3
    assert error(await ask(one, "RESUME")).message == "pooler is not paused/suspended"


async def test_of_two_that_pause_at_once_one_wins(crew: Crew) -> None:
    visitors = [await crew[index].enter() for index in range(3)]
    answers = await asyncio.gather(*(ask(visitor, "PAUSE") for visitor in visitors))
    assert sorted(b"already suspended/paused" in answer for answer in answers) == [False, True, True]
    assert crew.states == ["paused"] * 3


async def test_a_pause_waits_for_all_workers(crew: Crew) -> None:
    at_rest = await busy(crew, 1)
    visitor = await crew[0].enter()
    asking = asyncio.create_task(ask(visitor, "PAUSE shop"))
    await until(lambda: crew[2].gateway.pools.databases["shop"].paused)
    await asyncio.sleep(0.05)
    assert not asking.done()
    at_rest.set()
    assert tags(await asking) == ["PAUSE"]
    (other, shop) = sorted(
        (row["name"], row["paused"]) for row in await look(visitor, "SHOW DATABASES") if row["name"] != "pgbouncer"
    )
    assert (other, shop) == (("other", "0"), ("shop", "1"))


async def test_a_cancel_takes_a_pause_back_everywhere(crew: Crew) -> None:
    await busy(crew, 1)
    visitor = await crew[0].enter()
    asking = asyncio.create_task(ask(visitor, "PAUSE"))
    await until(lambda: crew.states == ["paused"] * 3)
    visitor.session.cancel()
    assert error(await asking).sqlstate == "57014"
    await until(lambda: crew.states == ["active"] * 3)


async def test_a_cancel_does_not_take_back_what_somebody_else_has_paused(crew: Crew) -> None:
    one, two = await crew[0].enter(), await crew[1].enter()
    await ask(one, "PAUSE")
    two.session.data_received(client.query(b"PAUSE"))
    # It is on its way, and will be refused.
    while not two.session.busy:  # noqa: ASYNC110 - no event tells when a command begins
        await asyncio.sleep(0)
    two.session.cancel()
    await until(lambda: not two.session.busy)
    assert tags(await ask(two, "SHOW VERSION")) == ["SHOW"]
    assert crew.states == ["paused"] * 3


async def test_a_pause_outlives_the_session_that_waits_for_it(crew: Crew) -> None:
    await busy(crew, 1)
    visitor = await crew[0].enter()
    visitor.session.data_received(client.query(b"PAUSE"))
    await until(lambda: crew.states == ["paused"] * 3)
    visitor.leave()
    await asyncio.sleep(0.05)
    assert crew.states == ["paused"] * 3


async def test_what_cannot_be_done_on_one_worker_is_taken_back_on_the_others(crew: Crew) -> None:
    operations: Any = crew[1].gateway.operations

    def refuse(database: str | None) -> None:
        raise GatewayError("not here", sqlstate="55000", severity="ERROR")

    operations.begin_pause = refuse
    visitor = await crew[0].enter()
    refusal = error(await ask(visitor, "PAUSE"))
    assert (refusal.message, refusal.sqlstate) == ("not here", "55000")
    assert "worker 1" in refusal.detail
    await until(lambda: crew.states == ["active"] * 3)
    assert crew.face.state == "active"


async def test_a_worker_that_is_busy_is_named_and_does_it_late(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "_ACTS", 0.05)
    crew[1].theirs.on("act", lambda body: asyncio.sleep(10))
    visitor = await crew[0].enter()
    answer = await ask(visitor, "DISABLE shop")
    assert tags(answer) == ["DISABLE"]
    assert b"worker 1 has not answered within 0.05 s: it will do so late" in answer
    assert crew.face.standing.disabled_databases == {"shop"}


async def test_signals_pause_and_resume_all(crew: Crew) -> None:
    await crew.face.pause(None)
    assert crew.states == ["paused"] * 3
    await crew.face.resume(None)
    assert crew.states == ["active"] * 3


# -- suspending --------------------------------------------------------------------------------------------------------


async def test_a_suspension_ends_when_nobody_is_at_any_console(crew: Crew) -> None:
    one, two = await crew[0].enter(), await crew[2].enter()
    assert tags(await ask(one, "SUSPEND")) == ["SUSPEND"]
    assert crew.states == ["suspended"] * 3
    one.leave()
    await asyncio.sleep(0.05)
    assert crew.states == ["suspended"] * 3
    two.leave()
    await until(lambda: crew.states == ["active"] * 3)


async def test_a_suspension_ends_with_the_worker_at_whose_console_it_was(crew: Crew) -> None:
    visitor = await crew[0].enter()
    await ask(visitor, "SUSPEND")
    await crew[0].die()
    await until(lambda: crew.states == ["active"] * 2)


async def test_a_suspension_needs_no_pause_anywhere(crew: Crew) -> None:
    one, two = await crew[0].enter(), await crew[1].enter()
    await ask(one, "PAUSE shop")
    assert error(await ask(two, "SUSPEND")).message == "cannot suspend with paused databases"


# -- databases and sessions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["PAUSE", "RESUME", "KILL", "DISABLE", "ENABLE", "RECONNECT", "WAIT_CLOSE"])
async def test_a_database_that_is_none(crew: Crew, verb: str) -> None:
    visitor = await crew[1].enter()
    refusal = error(await ask(visitor, f"{verb} none"))
    assert (refusal.message, refusal.sqlstate) == ("no such database: none", "3D000")


async def test_databases_are_disabled_and_enabled_everywhere(crew: Crew) -> None:
    visitor = await crew[1].enter()
    for verb, disabled in (("DISABLE", True), ("ENABLE", False)):
        await ask(visitor, f"{verb} shop")
        states = [worker.gateway.pools.databases["shop"].disabled for worker in crew.workers.values()]
        assert states == [disabled] * 3


@pytest.mark.parametrize("sql", ["RECONNECT", "RECONNECT shop", "WAIT_CLOSE", "WAIT_CLOSE shop", "KILL shop"])
async def test_verbs_that_leave_nothing_to_look_at(crew: Crew, sql: str) -> None:
    visitor = await crew[1].enter()
    assert tags(await ask(visitor, sql)) == [sql.split()[0]]


async def test_wait_close_waits_for_all_workers(crew: Crew) -> None:
    closed = await busy(crew, 1)
    visitor = await crew[0].enter()
    asking = asyncio.create_task(ask(visitor, "WAIT_CLOSE"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    closed.set()
    assert tags(await asking) == ["WAIT_CLOSE"]


async def test_a_client_is_killed_by_its_id_wherever_it_is(crew: Crew) -> None:
    admin, victim = await crew[0].enter(), await crew[2].enter()
    (row,) = [row for row in await look(admin, "SHOW CLIENTS") if row["id"] == str(victim.session.id)]
    assert row["worker"] == "2"
    assert tags(await ask(admin, f"KILL_CLIENT {row['id']}")) == ["KILL_CLIENT"]
    assert victim.transport.closing
    victim.leave()
    refusal = error(await ask(admin, f"KILL_CLIENT {row['id']}"))
    assert (refusal.message, refusal.sqlstate) == ("client not found", "42704")


@pytest.mark.parametrize(
    ("sql", "patience"),
    [("SHUTDOWN WAIT_FOR_CLIENTS", Patience.CLIENTS), ("SHUTDOWN WAIT_FOR_SERVERS", Patience.TRANSACTIONS)],
)
async def test_shutdown_is_the_supervisors(crew: Crew, sql: str, patience: Patience) -> None:
    visitor = await crew[1].enter()
    assert tags(await ask(visitor, sql)) == ["SHUTDOWN"]
    await until(lambda: crew.shutdowns == [patience])


# -- the configuration -------------------------------------------------------------------------------------------------


def sizes(crew: Crew) -> list[int]:
    return [worker.gateway.config.default_pool_size for _, worker in sorted(crew.workers.items())]


async def test_reload_and_set(crew: Crew) -> None:
    one, two = await crew[0].enter(), await crew[1].enter()
    crew.write(default_pool_size=7)
    assert tags(await ask(one, "RELOAD")) == ["RELOAD"]
    assert sizes(crew) == [7] * 3
    assert tags(await ask(two, "SET default_pool_size = 9")) == ["SET default_pool_size=9"]
    assert sizes(crew) == [9] * 3
    assert crew.face.standing.settings == (("default_pool_size", "9"),)
    await ask(one, "RELOAD")
    assert sizes(crew) == [7] * 3
    assert not crew.face.standing.settings


async def test_a_reload_of_nonsense_changes_nothing(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    visitor = await crew[1].enter()
    crew.write("default_pool_size = many\n")
    refusal = error(await ask(visitor, "RELOAD"))
    assert refusal.message == "RELOAD failed, see logs for additional details"
    assert f"{crew.ini}:8:" in refusal.detail and "default_pool_size" in refusal.detail
    assert sizes(crew) == [20] * 3
    assert caplog.text.count("RELOAD failed, all is as it was") == 1


async def test_what_one_worker_cannot_take_none_takes(crew: Crew) -> None:
    operations: Any = crew[2].gateway.operations

    def prepare(read: object) -> None:
        raise ConfigError("no memory left for certificates", path="gateway.ini", line=3)

    operations.prepare = prepare
    visitor = await crew[0].enter()
    crew.write(default_pool_size=7)
    assert error(await ask(visitor, "RELOAD")).detail == "worker 2: gateway.ini:3: no memory left for certificates"
    assert sizes(crew) == [20] * 3
    assert (await ask(visitor, "SHOW VERSION"))[:1] == b"T"


async def test_files_that_change_while_they_are_read_change_nothing(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter("abc")
    monkeypatch.setattr(deeds, "_digest", lambda config: next(digests))
    visitor = await crew[0].enter()
    crew.write(default_pool_size=7)
    assert "different auth_files" in error(await ask(visitor, "RELOAD")).detail
    assert sizes(crew) == [20] * 3


async def test_a_worker_that_does_not_answer_holds_a_reload_off(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "_PREPARES", 0.05)
    crew[1].theirs.on("prepare", lambda body: asyncio.sleep(10))
    visitor = await crew[0].enter()
    crew.write(default_pool_size=7)
    assert "worker 1 has not answered" in error(await ask(visitor, "RELOAD")).detail
    assert sizes(crew) == [20] * 3


async def test_a_worker_that_dies_meanwhile_does_not(crew: Crew) -> None:
    asked = asyncio.Event()

    async def prepare(body: object) -> None:
        asked.set()
        await asyncio.sleep(10)

    crew[1].theirs.on("prepare", prepare)
    visitor = await crew[0].enter()
    crew.write(default_pool_size=7)
    asking = asyncio.create_task(ask(visitor, "RELOAD"))
    await asked.wait()
    await crew[1].die()
    assert tags(await asking) == ["RELOAD"]
    assert sizes(crew) == [7] * 2
    await crew.hire(1)
    assert sizes(crew) == [7] * 3


async def test_a_reload_goes_on_without_who_asked_for_it(crew: Crew) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    truly = crew[1].gateway.deeds
    assert truly is not None

    async def prepare(body: Any) -> Any:
        asked.set()
        await go_on.wait()
        return truly._prepare(body)

    crew[1].theirs.on("prepare", prepare)
    visitor = await crew[0].enter()
    crew.write(default_pool_size=7)
    visitor.session.data_received(client.query(b"RELOAD"))
    await asked.wait()
    await crew[0].die()
    go_on.set()
    await until(lambda: sizes(crew) == [7] * 2)


async def test_a_worker_that_cannot_follow_is_replaced(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    operations: Any = crew[1].gateway.operations

    def commit(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    operations.commit = commit
    visitor = await crew[0].enter()
    crew.write(default_pool_size=7)
    assert tags(await ask(visitor, "RELOAD")) == ["RELOAD"]
    await until(lambda: not crew[1].ours.is_open)
    assert "worker 1 cannot change its configuration, and is replaced" in caplog.text
    assert (crew[0].settings.default_pool_size, crew[2].settings.default_pool_size) == (7, 7)


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SET default_pool_size = many", "22023"),
        ("SET nonsense = 1", "42704"),
        ("SET listen_port = 1", "55P02"),
        ("SET auth_file = '/nonexistent'", "22023"),
    ],
)
async def test_a_set_that_is_refused_changes_nothing(crew: Crew, sql: str, sqlstate: str) -> None:
    visitor = await crew[1].enter()
    assert error(await ask(visitor, sql)).sqlstate == sqlstate
    assert not crew.face.standing.settings


async def test_reloads_and_sets_come_one_after_the_other(crew: Crew) -> None:
    visitors = [await crew[index].enter() for index in range(3)]
    crew.write(default_pool_size=7)
    await asyncio.gather(
        ask(visitors[0], "RELOAD"), ask(visitors[1], "SET default_pool_size = 8"), ask(visitors[2], "RELOAD")
    )
    assert len(set(sizes(crew))) == 1
    assert sizes(crew) == [crew.face.standing.loaded(str(crew.ini)).config.default_pool_size] * 3


async def test_what_is_new_is_said_once(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pgtrunk_gateway")
    visitor = await crew[1].enter()
    crew.write(default_pool_size=7, listen_port=1)
    await ask(visitor, "RELOAD")
    assert caplog.text.count("default_pool_size: 20 -> 7") == 1
    assert caplog.text.count(" listen_port: 6432 -> 1 needs a restart") == 1
    assert caplog.text.count("RELOAD command issued") == 1


# -- new workers -------------------------------------------------------------------------------------------------------


async def test_a_worker_that_comes_back_is_as_the_others_are(crew: Crew) -> None:
    visitor = await crew[0].enter()
    for sql in ("SET default_pool_size = 9", "DISABLE other", "PAUSE shop", "PAUSE"):
        await ask(visitor, sql)
    # Nobody has reloaded that.
    crew.write("nonsense\n")
    await crew[2].die()
    worker = await crew.hire(2)
    assert crew.states == ["paused"] * 3
    assert worker.settings.default_pool_size == 9
    databases = worker.gateway.pools.databases
    assert databases["other"].disabled and databases["shop"].paused
    await ask(visitor, "RESUME")
    assert crew.states == ["active"] * 3
    assert databases["shop"].paused


async def test_a_worker_that_was_started_before_a_change_catches_up(crew: Crew) -> None:
    visitor = await crew[0].enter()
    await ask(visitor, "PAUSE shop")
    old = crew.face.standing.as_body()
    await crew[2].die()
    for sql in ("RESUME shop", "SET default_pool_size = 9", "SUSPEND"):
        await ask(visitor, sql)
    crew_worker = type(crew[0])(crew, 2)
    await crew_worker.connect()
    crew_worker.begin(old)
    assert crew_worker.gateway.pools.databases["shop"].paused
    await crew_worker.join()
    assert crew.states == ["suspended"] * 3
    assert crew_worker.settings.default_pool_size == 9
    assert not crew_worker.gateway.pools.databases["shop"].paused


async def test_without_workers_the_supervisor_remembers(tmp_path: Path) -> None:
    async with Crew(tmp_path, 2) as crew:
        await crew[0].die()
        await crew[1].die()
        await crew.face.pause(None)
        await crew.face.reload()
        await crew.hire(1)
        assert crew.states == ["paused"]
