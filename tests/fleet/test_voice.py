"""SHOW at one worker's console, for all of them: sums, the worker's column, and those that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helpers.consoles import cells, error, kinds, notices
from helpers.crews import Crew, ask, look
from helpers.waiting import until
from pgtrunk.wire.framing import encode
from pgtrunk_gateway.console.registry import SHOWS
from pgtrunk_gateway.fleet import voice


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    """Three workers."""
    async with Crew(tmp_path, 3) as crew:
        yield crew


async def test_rows_of_one_worker_have_its_number(crew: Crew) -> None:
    visitors = [await crew[index].enter() for index in (0, 2, 2)]
    for asking in visitors:
        clients = await look(asking, "SHOW CLIENTS")
        assert [row["worker"] for row in clients] == ["0", "2", "2"]
        assert {row["id"] for row in clients} == {str(visitor.session.id) for visitor in visitors}
    assert {row["worker"] for row in await look(visitors[0], "SHOW MEM")} == {"0", "1", "2"}


@pytest.mark.parametrize("name", [name for name in SHOWS if name != "FDS"])
async def test_each_show(crew: Crew, name: str) -> None:
    visitors = [await crew[index].enter() for index in (0, 1, 2)]
    shows = [await look(visitor, f"SHOW {name}") for visitor in visitors]
    columns = [column.name for column in SHOWS[name].columns]
    for rows in shows:
        for row in rows:
            assert list(row) == (columns if not SHOWS[name].by_worker else [*columns, "worker"])
    assert len({len(rows) for rows in shows}) == 1
    each = await look(visitors[0], f"SHOW {name} BY WORKER")
    assert {row["worker"] for row in each} in ({"0", "1", "2"}, set())


async def test_pools_are_added_up(crew: Crew) -> None:
    visitors = [await crew[index].enter() for index in (0, 1, 1, 2)]
    (pool,) = await look(visitors[0], "SHOW POOLS")
    assert (pool["database"], pool["cl_active"]) == ("pgbouncer", "4")
    each = await look(visitors[3], "SHOW POOLS BY WORKER")
    assert [(row["worker"], row["cl_active"]) for row in each] == [("0", "1"), ("1", "2"), ("2", "1")]
    lists = {row["list"]: row["items"] for row in await look(visitors[0], "SHOW LISTS")}
    assert (lists["used_clients"], lists["databases"], lists["pools"], lists["users"]) == ("4", "3", "1", "1")


async def test_stats_are_added_up_and_outlive_their_worker(crew: Crew) -> None:
    visitors = [await crew[index].enter() for index in (0, 1, 2)]
    for visitor in visitors[1:]:
        await ask(visitor, "SHOW VERSION; SHOW VERSION")
    (before,) = await look(visitors[0], "SHOW STATS_TOTALS")
    assert (before["xact_count"], before["client_login_count"]) == ("5", "3")
    await crew[2].die()
    (after,) = await look(visitors[0], "SHOW STATS_TOTALS")
    assert (after["xact_count"], after["client_login_count"]) == ("6", "3")
    totals = {row["name"]: row["value"] for row in await look(visitors[0], "SHOW TOTALS")}
    assert totals["total_xact_count"] == "7"
    (stats,) = await look(visitors[0], "SHOW STATS")
    assert stats["total_xact_count"] == "8"


async def test_what_is_counted_is_told_without_being_asked_for(crew: Crew) -> None:
    await crew[1].enter()
    voice_of_one = crew[1].gateway.voice
    assert voice_of_one is not None
    voice_of_one._tell_totals()
    await until(lambda: crew.face.ledger.read()["pgbouncer"].client_login_count == 1)


async def test_long_answers_come_in_pages(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "_PAGE", 2)
    visitors = [await crew[index].enter() for index in (0, 0, 0, 1, 1, 1, 1, 1, 2, 2)]
    clients = await look(visitors[0], "SHOW CLIENTS")
    assert {row["id"] for row in clients} == {str(visitor.session.id) for visitor in visitors}
    assert not [rest for worker in crew.workers.values() for rest in worker.gateway.voice._rests]  # type: ignore[union-attr]


async def test_what_nobody_fetches_is_forgotten(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "_PAGE", 1)
    monkeypatch.setattr(voice, "_KEEPS", 0.01)
    visitors = [await crew[1].enter() for _ in range(3)]
    kept: Any = crew[1].gateway.voice
    rest = kept._asked({"show": "CLIENTS", "from": 0})["rest"]
    assert rest in kept._rests
    await until(lambda: not kept._rests)
    # Who comes too late gets what there is, and knows.
    monkeypatch.setattr(voice, "_KEEPS", 10.0)
    crew[1].gateway.fleet.member.on("show on", lambda body: kept._asked_on({"rest": rest}))  # type: ignore[union-attr]
    asker = await crew[0].enter()
    (warning,) = notices(await ask(asker, "SHOW CLIENTS"))
    assert "worker 1 is not among these, or not with all of it" in warning.message
    assert len(visitors) == 3


async def test_a_worker_that_does_not_answer_is_named(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "_ANSWERS", 0.05)
    silent: Any = crew[1].gateway.fleet
    silent.member.on("show", lambda body: asyncio.sleep(10))
    visitor = await crew[0].enter()
    answer = await ask(visitor, "SHOW MEM")
    (warning,) = notices(answer)
    assert (warning.severity, warning.sqlstate) == ("WARNING", "01000")
    assert (
        warning.message.startswith("worker 1 is not among these")
        and "has not answered within 0.05 s" in warning.message
    )
    assert {row["worker"] for row in await look(visitor, "SHOW MEM")} == {"0", "2"}


async def test_a_worker_that_is_not_there_is_named(crew: Crew) -> None:
    await crew[1].die()
    visitor = await crew[0].enter()
    (warning,) = notices(await ask(visitor, "SHOW POOLS"))
    assert warning.message == "worker 1 is not among these: it is not there at the moment"
    assert not notices(await ask(visitor, "SHOW CONFIG"))


async def test_what_is_not_supported_is_so_for_all(crew: Crew) -> None:
    visitor = await crew[0].enter()
    assert error(await ask(visitor, "SHOW FDS")).sqlstate == "0A000"


async def test_the_fleet(crew: Crew) -> None:
    await crew[1].die()
    visitor = await crew[0].enter()
    fleet = await look(visitor, "SHOW FLEET")
    assert [row["worker"] for row in fleet] == ["0", "1", "2"]
    assert [row["state"] for row in fleet] == ["active", "starting", "active"]
    assert [row["generation"] for row in fleet] == ["3", None, "3"]
    assert fleet[1]["sessions"] is None and int(fleet[0]["cpu_ms"] or 0) > 0


async def test_an_extended_query_is_told_of_the_worker_before(crew: Crew) -> None:
    visitor = await crew[0].enter()
    parse = encode(b"P", b"\0SHOW CLIENTS\0\0\0")
    answer = await visitor.send(parse + encode(b"D", b"S\0") + encode(b"S"))
    assert kinds(answer) == "1tTZ" and b"worker\0" in answer
    run = encode(b"B", b"\0\0\0\0\0\0\0\0") + encode(b"E", b"\0\0\0\0\0") + encode(b"S")
    visitor.session.data_received(run)
    answer = b""

    def answered() -> bool:
        nonlocal answer
        answer += visitor.transport.take()
        return answer.endswith(b"Z\0\0\0\5I")

    await until(answered)
    assert cells(answer)[0][-1] == b"0"
