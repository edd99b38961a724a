"""Who gets into the console, how, and with which rights."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from typing import Any

import pytest

from helpers.consoles import Room, error, kinds, rows, tags
from helpers.lobby import USERS
from helpers.transports import FakeTransport
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.errors import LookupFailed
from pgtrunk_gateway.relay.visiting import peer_uid


class UnixSocket:
    """The client's end is a process of ``uid``."""

    family = socket.AF_UNIX

    def __init__(self, uid: int) -> None:
        self.uid = uid

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        fields = (4711, self.uid, 0) if hasattr(socket, "SO_PEERCRED") else (0, self.uid)
        return b"".join(field.to_bytes(4, "little") for field in fields)


def unix(uid: int | None = None) -> dict[str, Any]:
    return {"socket": UnixSocket(os.getuid() if uid is None else uid)}


def reported(welcome: bytes) -> dict[str, str]:
    return dict(server.parse_parameter_status(welcome[s + 5 : e]) for k, s, e in messages(welcome) if k == ord("S"))


async def startup(room: Room, user: str, database: str = "pgbouncer", **extra: Any) -> bytes:
    visitor = await room.enter(user, database, **extra)
    return visitor.welcome


@pytest.mark.parametrize("database", ["pgbouncer", "pgtrunk", "gateway"])
async def test_all_three_names_lead_here(database: str) -> None:
    room = Room()
    welcome = await startup(room, "boss", database)
    assert kinds(welcome) == "RSSSSSSSSKZ"
    assert reported(welcome)["server_version"].endswith("/pgtrunk")
    assert reported(welcome)["client_encoding"] == "UTF8"
    await room.end()


async def test_a_session_here_counts_against_no_limit() -> None:
    room = Room(max_client_conn=0)
    visitor = await room.enter()
    assert room.context.admitted == 0
    assert room.context.counters.opened == room.context.counters.closed + 1
    assert tags(await visitor.query("SHOW VERSION")) == ["SHOW"]
    await room.end()


@pytest.mark.parametrize(
    ("key", "guests"), [("max_db_client_connections", 0), ("max_user_client_connections", 1)], ids=["database", "user"]
)
async def test_of_limits_by_database_and_user_administrators_are_exempt(key: str, guests: int) -> None:
    limits: dict[str, Any] = {key: 1}
    room = Room(**limits)
    for user in ("boss", "boss", *["guest"] * guests):
        assert kinds((await room.enter(user)).welcome).endswith("KZ")
    assert room.context.tally.databases == {"pgbouncer": 2 + guests}
    assert room.context.tally.users["boss"] == 2
    refusal = error((await room.enter("guest", "pgtrunk")).welcome)
    assert (refusal.sqlstate, refusal.message) == ("53300", f"client connections exceeded ({key})")
    await room.end()


@pytest.mark.parametrize("user", ["pgbouncer", "pgtrunk"])
async def test_who_runs_the_gateway_needs_no_password_on_the_unix_socket(user: str) -> None:
    room = Room(auth_type="scram-sha-256", users=USERS)
    visitor = await room.enter(user, **unix())
    assert kinds(visitor.welcome).endswith("KZ")
    assert tags(await visitor.query("PAUSE")) == ["PAUSE"]
    await room.end()


@pytest.mark.parametrize("extra", [{}, unix(os.getuid() + 1), {"socket": socket.socket()}])
async def test_others_do(extra: dict[str, Any]) -> None:
    room = Room(auth_type="scram-sha-256", users=USERS)
    assert kinds(await startup(room, "pgbouncer", **extra)) == "R"
    await room.end()
    if "socket" in extra and isinstance(extra["socket"], socket.socket):
        extra["socket"].close()


async def test_the_owner_by_another_name_is_nobody() -> None:
    room = Room(auth_type="scram-sha-256", users=USERS)
    assert kinds(await startup(room, "root", **unix())) == "R"
    await room.end()


async def test_whom_nobody_can_look_up_is_asked_like_all_others() -> None:
    """The console has no users to ask for. Who is not in auth_file must not hear of that at once."""
    room = Room(auth_type="scram-sha-256", users=USERS, auth_user="asker")

    async def lookup(entry: object, user: str) -> None:
        raise LookupFailed

    room.context.lookup = lookup
    assert kinds(await startup(room, "app")) == kinds(await startup(room, "nobody")) == "R"
    room.context.config = replace(room.context.config, auth_dbname="users")
    assert error(await startup(room, "nobody")).message == "bouncer config error"
    await room.end()


async def test_trust_lets_in_only_whom_somebody_knows() -> None:
    room = Room(auth_user="asker")
    assert error(await startup(room, "boss")).message == "no such user"
    await room.end()


@pytest.mark.parametrize("auth_type", ["trust", "any"])
async def test_others_are_not_allowed(auth_type: str) -> None:
    room = Room(auth_type=auth_type)
    refused = error(await startup(room, "app"))
    assert (refused.severity, refused.sqlstate, refused.message) == ("FATAL", "42501", "not allowed")
    await room.end()


@pytest.mark.parametrize("auth_type", ["trust", "any"])
async def test_stats_users_look_and_do_nothing(auth_type: str) -> None:
    room = Room(auth_type=auth_type)
    visitor = await room.enter("guest")
    assert tags(await visitor.query("SHOW POOLS; SHOW HELP; SET datestyle = 'ISO'")) == ["SHOW", "SHOW", "SET"]
    for command in ("PAUSE", "RELOAD", "SET verbose = 1", "SHOW FDS", "KILL_CLIENT 1"):
        refused = error(await visitor.query(command))
        assert (refused.sqlstate, refused.message) == ("42501", "admin access needed")
    assert room.operations.asked == []
    await room.end()


async def test_the_login_is_the_one_for_any_database() -> None:
    room = Room(auth_type="scram-sha-256", users=USERS, admin_users=("app",))
    visitor = await room.enter("app")
    assert kinds(visitor.welcome) == "R"
    wrong = client.sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=abc")
    assert kinds(await visitor.send(wrong)) == "R"
    refused = error(await visitor.send(client.sasl_response(b"c=biws,r=abc,p=AAAA")))
    assert refused.severity == "FATAL"
    await room.end()


async def test_what_comes_with_the_startup_packet_is_answered() -> None:
    room = Room()
    await room.enter()
    packet = StartupMessage(parameters={"user": "boss", "database": "pgbouncer", "application_name": "probe"})
    visitor = room.arrive()
    answer = await visitor.send(packet.encode() + client.query(b"SHOW CLIENTS") + client.TERMINATE_MESSAGE)
    assert kinds(answer) == "RSSSSSSSSKZTDDCZ"
    assert {row["application_name"] for row in rows(answer)} == {"", "probe"}
    assert visitor.transport.closing
    await room.end()


async def test_a_client_that_says_all_at_once_is_answered_too() -> None:
    room = Room()
    visitor = room.arrive()
    packet = StartupMessage(parameters={"user": "boss", "database": "pgbouncer"})
    protocol = visitor.transport.get_protocol()
    assert isinstance(protocol, asyncio.Protocol)
    protocol.data_received(packet.encode() + client.query(b"SHOW VERSION"))
    protocol.eof_received()
    assert kinds(await visitor.answer()) == "RSSSSSSSSKZTDCZ"
    assert visitor.transport.closing
    await room.end()


def test_the_peer_of_a_socket_that_is_not_unix_is_unknown() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(FakeTransport(socket=ours)) == os.getuid()
    with socket.socket() as tcp:
        assert peer_uid(FakeTransport(socket=tcp)) is None
    with socket.socket(socket.AF_UNIX) as closed:
        closed.close()
        assert peer_uid(FakeTransport(socket=closed)) is None
    assert peer_uid(FakeTransport()) is None
