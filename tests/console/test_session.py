"""A console session as a whole: what it does while a command waits, with clients that do not read, and at its end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from helpers.consoles import Room, Visitor, error, kinds, notices, rows, tags
from helpers.waiting import until
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.errors import ConfigError, NoSuchDatabase, ShuttingDown


async def waiting(room: Room, command: str = "PAUSE") -> Visitor:
    """A client whose command waits."""
    room.operations.gate.clear()
    visitor = await room.enter()
    assert await visitor.query(command) == b""
    assert visitor.session.busy
    return visitor


# -- verbs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "asked"),
    [
        ("PAUSE", ("pause", None)),
        ("pause P3x", ("pause", "P3x")),
        ("RESUME", ("resume", None)),
        ('RESUME "my db"', ("resume", "my db")),
        ("SUSPEND", ("suspend",)),
        ("DISABLE p0", ("disable", "p0")),
        ("ENABLE p0", ("enable", "p0")),
        ("RECONNECT", ("reconnect", None)),
        ("RECONNECT p0", ("reconnect", "p0")),
        ("KILL", ("kill", None)),
        ("KILL p0", ("kill", "p0")),
        ("KILL_CLIENT 12", ("kill_client", 12)),
        ("WAIT_CLOSE", ("wait_close", None)),
        ("WAIT_CLOSE p0", ("wait_close", "p0")),
        ("RELOAD", ("reload",)),
        ("SHUTDOWN WAIT_FOR_CLIENTS", ("shutdown", "clients")),
        ("shutdown wait_for_servers", ("shutdown", "servers")),
    ],
)
async def test_each_verb_asks_for_one_thing_and_answers_with_its_name(sql: str, asked: tuple[object, ...]) -> None:
    room = Room()
    visitor = await room.enter()
    answer = await visitor.query(sql)
    assert kinds(answer) == "CZ"
    assert tags(answer) == [sql.split()[0].upper()]
    assert room.operations.asked == [asked]
    await room.end()


async def test_set_answers_with_what_was_set() -> None:
    room = Room()
    visitor = await room.enter()
    assert tags(await visitor.query("set verbose = '2'")) == ["SET verbose=2"]
    assert room.operations.asked == [("set", "verbose", "2")]
    await room.end()


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        ("DISABLE", "22023", "a database is required"),
        ("ENABLE", "22023", "a database is required"),
        ("KILL_CLIENT", "22023", "invalid client pointer supplied"),
        ("KILL_CLIENT abc", "22023", "invalid client pointer supplied"),
        ("KILL_CLIENT -1", "22023", "invalid client pointer supplied"),
        ("KILL_CLIENT 123456789012345678901", "22023", "invalid client pointer supplied"),
        ("PAUSE pgbouncer", "22023", "cannot pause admin db: pgbouncer"),
        ("DISABLE gateway", "22023", "cannot disable admin db: gateway"),
        ("frobnicate", "42601", "invalid command 'frobnicate', use SHOW HELP;"),
    ],
)
async def test_what_is_refused_before_it_is_asked_for(sql: str, sqlstate: str, message: str) -> None:
    room = Room()
    visitor = await room.enter()
    refused = error(await visitor.query(sql))
    assert (refused.severity, refused.sqlstate, refused.message) == ("ERROR", sqlstate, message)
    assert room.operations.asked == []
    await room.end()


async def test_what_the_gateway_refuses_is_an_error_and_not_the_end() -> None:
    room = Room()
    room.operations.error = NoSuchDatabase("no such database: dne")
    visitor = await room.enter()
    refused = error(await visitor.query("KILL dne"))
    assert (refused.severity, refused.sqlstate, refused.message) == ("ERROR", "3D000", "no such database: dne")
    assert tags(await visitor.query("SHOW VERSION")) == ["SHOW"]
    await room.end()


async def test_a_reload_that_fails_says_why() -> None:
    room = Room()
    room.operations.error = ConfigError("bad value", path="gateway.ini", line=3)
    visitor = await room.enter()
    refused = error(await visitor.query("RELOAD"))
    assert (refused.sqlstate, refused.message) == ("F0000", "RELOAD failed, see logs for additional details")
    assert refused.detail == "gateway.ini:3: bad value"
    await room.end()


async def test_shutdown_at_once_is_answered_by_the_end() -> None:
    room = Room()
    visitor = await room.enter()
    assert await visitor.query("SHUTDOWN") == b""
    assert room.operations.asked == [("shutdown", None)]
    closing = asyncio.create_task(room.console.close(60))
    assert error(await visitor.answer()).sqlstate == "57P01"
    await room.end()
    await closing


async def test_shutdown_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk_gateway.console.verbs._LAST", 0.0)
    room = Room()
    visitor = await room.enter()
    assert tags(await visitor.query("SHUTDOWN")) == ["SHUTDOWN"]
    await room.end()


async def test_help_lists_every_command() -> None:
    room = Room()
    visitor = await room.enter()
    (notice,) = notices(await visitor.query("SHOW HELP"))
    assert notice.message == "Console usage"
    for line in ("SET key = arg", "PAUSE [<db>]", "DISABLE <db>", "KILL_CLIENT <client_id>"):
        assert f"\n\t{line}\n" in notice.detail
    assert "|POOLS" in notice.detail and "|CONNECTIONS" in notice.detail
    await room.end()


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_command_that_waits_is_answered_when_it_is_done() -> None:
    room = Room()
    visitor = await waiting(room)
    assert await visitor.query("SHOW STATE") == b""
    room.operations.gate.set()
    answer = await visitor.answer()
    assert tags(answer) == ["PAUSE", "SHOW"]
    assert rows(answer)[1] == {"key": "paused", "value": "yes"}
    await room.end()


@pytest.mark.parametrize("command", ["PAUSE", "PAUSE p0", "SUSPEND"])
async def test_a_cancel_ends_the_wait_and_resumes(command: str) -> None:
    room = Room()
    visitor = await waiting(room, command)
    visitor.session.cancel()
    answer = await visitor.answer()
    assert kinds(answer) == "EZ" and error(answer).sqlstate == "57014"
    assert room.operations.asked[-1] == ("resume", "p0" if "p0" in command else None)
    assert room.operations.state == "active"
    assert tags(await visitor.query("SHOW VERSION")) == ["SHOW"]
    await room.end()


async def test_a_cancel_of_what_cannot_be_undone_only_ends_the_wait() -> None:
    room = Room()
    visitor = await waiting(room, "WAIT_CLOSE")
    visitor.session.cancel()
    assert error(await visitor.answer()).sqlstate == "57014"
    assert room.operations.asked == [("wait_close", None)]
    visitor.session.cancel()
    assert await visitor.answer() == b""
    await room.end()


async def test_a_wait_ends_with_its_connection_and_the_pause_does_not() -> None:
    room = Room()
    visitor = await waiting(room)
    await room.end()
    assert not visitor.session.busy
    assert room.operations.asked == [("pause", None)]


async def test_a_client_that_says_no_more_has_little_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk_gateway.console.session._LINGER", 0.01)
    room = Room()
    visitor = await waiting(room)
    assert visitor.session.eof_received()
    await until(lambda: visitor.transport.closing)
    await room.end()


async def test_what_was_asked_before_the_end_is_answered() -> None:
    room = Room()
    visitor = await room.enter()
    visitor.session.data_received(client.query(b"SHOW VERSION"))
    visitor.session.eof_received()
    assert kinds(await visitor.answer()) == "TDCZ"
    assert visitor.transport.closing
    await room.end()


async def test_a_suspension_ends_when_nobody_is_left_to_end_it() -> None:
    room = Room()
    first, second = await room.enter(), await room.enter()
    await first.query("SUSPEND")
    first.leave()
    assert ("resume", None) not in room.operations.asked
    second.leave()
    assert ("resume", None) in room.operations.asked
    await room.end()


async def test_a_gateway_that_stops_while_it_is_suspended_stays_so() -> None:
    room = Room()
    visitor = await room.enter()
    await visitor.query("SUSPEND")
    room.operations.error = ShuttingDown(severity="ERROR")
    visitor.leave()
    assert room.operations.asked[-1] == ("resume", None)
    await room.end()


# -- clients that misbehave --------------------------------------------------------------------------------------------


async def test_a_client_that_sends_ahead_is_not_read_without_bound() -> None:
    room = Room()
    visitor = await waiting(room)
    for _ in range(20):
        visitor.session.data_received(client.query(b"SHOW VERSION -- " + b"x" * 4000))
    assert visitor.transport.paused
    room.operations.gate.set()
    await until(lambda: not visitor.transport.paused)
    await room.end()


async def test_a_client_that_does_not_read_is_not_answered_without_bound() -> None:
    room = Room()
    visitor = await room.enter()
    visitor.session.pause_writing()
    answered = b""
    for _ in range(10):
        answered += await visitor.query("SHOW CONFIG; " * 100)
    assert len(answered) < 500_000
    visitor.session.resume_writing()
    whole = len(answered)
    while part := await visitor.answer():
        whole += len(part)
    assert whole > 1_000_000
    await room.end()


@pytest.mark.parametrize("garbage", [b"\0", b"Q\0\0\0\0", b"GET / HTTP/1.1\r\n", b"Q\0\1\0\1"])
async def test_garbage_ends_the_session(garbage: bytes) -> None:
    room = Room()
    visitor = await room.enter()
    answer = await visitor.send(garbage + b"\0" * 5)
    last = error(answer)
    assert (last.severity, last.sqlstate) == ("FATAL", "08P01")
    assert visitor.transport.closing
    await room.end()


async def test_a_fault_of_ours_ends_one_session_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    visitor, other = await room.enter(), await room.enter()
    room.operations.error = ZeroDivisionError("oops")
    last = error(await visitor.query("RELOAD"))
    assert (last.severity, last.sqlstate) == ("FATAL", "XX000")
    assert "oops" in caplog.text
    assert tags(await other.query("SHOW VERSION")) == ["SHOW"]
    await room.end()


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_the_log_says_why_a_session_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    room = Room()
    visitor = await room.enter()
    await visitor.send(client.TERMINATE_MESSAGE)
    assert (
        f"C-{visitor.session.id}: pgbouncer/boss@192.0.2.1:40001 closing because: client close request" in caplog.text
    )
    await (await room.enter()).query("PAUSE")
    room.visitors[-1].leave()
    assert "closing because: client unexpected eof" in caplog.text
    await room.end()


async def test_the_gateway_ends_with_a_last_word_to_each() -> None:
    room = Room()
    visitor = await waiting(room)
    closing = asyncio.create_task(room.console.close(0))
    last = error(await visitor.answer())
    assert (last.severity, last.sqlstate, last.message) == ("FATAL", "57P01", "pooler is shutting down")
    await closing
    assert visitor.transport.aborted
    await room.end()


async def test_commands_and_logins_are_counted() -> None:
    room = Room()
    visitor = await room.enter()
    await visitor.query("SHOW VERSION; SHOW STATE")
    (row,) = rows(await visitor.query("SHOW STATS_TOTALS"))
    assert (row["database"], row["xact_count"], row["query_count"]) == ("pgbouncer", "3", "3")
    assert row["client_login_count"] == "1"
    await room.end()
