"""Whom a limit keeps out, and that a login that ends in whatever way takes nobody's place."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.lobby import USERS, Lobby
from helpers.transports import FakeTransport
from helpers.waiting import until
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.errors import BackendRefused, GatewayError
from pgtrunk_gateway.pool.databases import DatabaseState
from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.session.state import State


def error(data: bytes) -> server.ErrorFields:
    *_, (kind, start, end) = messages(data)
    assert chr(kind) == "E"
    return server.parse_error(data[start + 5 : end])


@pytest.mark.parametrize("key", ["max_db_client_connections", "max_user_client_connections"])
async def test_a_session_too_many_is_told_which_limit_it_was(key: str) -> None:
    config: dict[str, Any] = {key: 1}
    lobby = Lobby(**config)
    other = lobby.context.tally.enter(100)
    other.settle(Config(), DatabaseConfig(name="shop"), "app")
    refusal = error(await lobby.startup())
    assert (refusal.sqlstate, refusal.message) == ("53300", f"client connections exceeded ({key})")
    assert refusal.detail == f"{key} = 1."
    assert (lobby.context.tally.databases, lobby.context.tally.users) == ({"shop": 1}, {"app": 1})
    other.leave()
    await lobby.end()


async def test_a_session_counts_from_its_login_to_its_end() -> None:
    lobby = Lobby()
    await lobby.startup()
    tally = lobby.context.tally
    assert (tally.total, tally.databases, tally.users, lobby.pool.sessions) == (1, {"shop": 1}, {"app": 1}, 1)
    lobby.session.fail(GatewayError("over"))
    lobby.session.connection_lost(None)
    assert (tally.total, tally.databases, tally.users, lobby.pool.sessions) == (0, {}, {}, 0)
    await lobby.end()


async def test_who_cannot_log_in_is_not_told_of_limits_and_counts_for_nobody() -> None:
    lobby = Lobby(auth_type="scram-sha-256", users=USERS, max_user_client_connections=1, max_db_client_connections=1)
    await lobby.startup()
    assert lobby.context.tally.total == 1
    assert not lobby.context.tally.users
    await lobby.end()


@pytest.mark.parametrize("error", [BackendRefused("pg_hba.conf rejects connection", sqlstate="28000"), None])
async def test_a_login_that_fails_at_the_server_or_is_given_up_there_counts_no_more(error: GatewayError | None) -> None:
    lobby = Lobby()
    lobby.pool.error = error
    if error is None:
        lobby.pool.gate.clear()
    await lobby.startup()
    counts = (lobby.context.tally.total, lobby.context.tally.users)
    assert counts == ((0, {}) if error is not None else (1, {"app": 1}))
    await lobby.end()


async def test_a_login_that_takes_too_long_counts_no_more() -> None:
    lobby = Lobby(client_login_timeout=0.01)
    lobby.pool.gate.clear()
    await lobby.startup()
    await until(lambda: lobby.session.state is State.CLOSED)
    assert (lobby.context.tally.total, lobby.context.tally.users, lobby.context.tally.databases) == (0, {}, {})
    await lobby.end()


async def test_a_disabled_database_takes_no_new_sessions() -> None:
    lobby = Lobby()
    lobby.context.databases["shop"] = DatabaseState(disabled=True)
    refusal = error(await lobby.startup())
    assert (refusal.sqlstate, refusal.message) == ("3D000", 'database "shop" is disabled')
    await lobby.end()


async def test_a_paused_database_takes_new_sessions() -> None:
    lobby = Lobby()
    lobby.context.databases["shop"] = DatabaseState(paused=True)
    await lobby.startup()
    assert lobby.session.state is State.IDLE
    await lobby.end()


async def test_who_has_hung_up_before_his_address_was_known_does_not_pass_for_a_unix_socket() -> None:
    # A reset takes a TCP connection's peer name away, but not what was sent before it: a cancel, say.
    lobby = Lobby()
    await lobby.end()
    gone = Session(lobby.context, "tcp")
    gone.connection_made(FakeTransport(peername=None))
    assert gone.state is State.CLOSED
    gone.data_received(CancelRequest(77, b"abcd").encode())
    await lobby.settle()
    assert lobby.cancels.served == []
    gone.connection_lost(None)
    local = Session(lobby.context, "unix")
    local.connection_made(FakeTransport(peername=""))
    local.data_received(CancelRequest(77, b"abcd").encode())
    await lobby.settle()
    assert lobby.cancels.served == [CancelRequest(77, b"abcd")]
    local.connection_lost(None)
    await lobby.end()
