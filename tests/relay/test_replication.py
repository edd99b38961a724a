"""Sessions that replicate: their login, the octets that pass, and their end. No sockets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helpers.lobby import PARAMETERS, Greeter, Lobby
from helpers.transports import FakeTransport
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import PROTOCOL_3_2, StartupMessage
from pgtrunk_gateway.errors import BackendRefused, ShuttingDown
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.pool.connect import Opened
from pgtrunk_gateway.pool.counts import PoolCounters
from pgtrunk_gateway.pool.handshake import Handshake
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.pool.walsender import Replication, Walsender
from pgtrunk_gateway.relay.replication import ReplicationSession, take_over
from pgtrunk_gateway.session.state import State

TARGET = Target(host="127.0.0.1", port=5432, dbname="shop", user="app")
WAL = server.error("XX000", "no error, but a part of the WAL")[:20]
HALF = client.copy_data(b"half a message")[:-1]


class PoolOfWalsenders(Greeter):
    """Gives each client its own."""

    def __init__(self) -> None:
        super().__init__()
        self.counters = PoolCounters()
        self.transport = FakeTransport()
        self.rest = b""
        """What Postgres says right behind its login."""
        self.asked: list[tuple[Replication, dict[str, str]]] = []
        self.walsender: Walsender
        self.lost: list[str] = []

    async def replicate(self, kind: Replication, settings: dict[str, str]) -> Walsender:
        self.asked.append((kind, settings))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        handshake = Handshake(TARGET, nonce=bytes(18))
        handshake.parameters = dict(PARAMETERS)
        handshake.key = server.BackendKeyData(7, b"1234")
        opened = Opened(self.transport, handshake, self.rest)
        self.walsender = Walsender(opened, kind, on_lost=lambda _, reason: self.lost.append(reason))
        self.walsender.stats = self.stats
        return self.walsender


class Crossing(Lobby):
    """A client that replicates, and its Postgres."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.pool: PoolOfWalsenders = PoolOfWalsenders()
        self.context.replicate = take_over

    @property
    def far(self) -> FakeTransport:
        """The transport to Postgres."""
        return self.pool.transport

    @property
    def replicating(self) -> ReplicationSession:
        (session,) = self.context.sessions
        assert isinstance(session, ReplicationSession)
        return session

    async def arrive(self, rest: bytes = b"", **parameters: str) -> bytes:
        """Logs in -> the welcome."""
        parameters = {"user": "app", "database": "shop", "replication": "database", **parameters}
        return await self.send(StartupMessage(parameters=parameters).encode() + rest)

    def says(self, data: bytes) -> None:
        self.replicating.data_received(data)

    def postgres_says(self, data: bytes) -> None:
        self.pool.walsender.data_received(data)

    async def close(self) -> None:
        """The client's connection is over: nothing is left."""
        for session in list(self.context.sessions):
            session.connection_lost(None)
        await self.settle()
        assert self.pool.walsender.state is BackendState.CLOSED
        assert self.far.closing
        assert self.context.sessions == set()
        assert self.context.admitted == self.pool.sessions == 0
        assert not self.context.tally.databases
        assert self.cancels.keys == []
        assert (self.context.counters.opened, self.context.counters.closed) == (1, 1)


def kinds(data: bytes) -> str:
    return "".join(chr(kind) for kind, _, _ in messages(data))


def last_error(data: bytes) -> server.ErrorFields:
    *_, (kind, start, end) = messages(data)
    assert chr(kind) == "E"
    return server.parse_error(data[start + 5 : end])


# -- the login


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("database", Replication.LOGICAL),
        ("true", Replication.PHYSICAL),
        ("YES", Replication.PHYSICAL),
        ("on", Replication.PHYSICAL),
        ("1", Replication.PHYSICAL),
        ("t", Replication.PHYSICAL),
    ],
)
async def test_what_the_client_asks_for(value: str, kind: Replication) -> None:
    crossing = Crossing()
    welcome = await crossing.arrive(replication=value, options="-c work_mem=1MB -d 3", application_name="wal")
    assert kinds(welcome) == "RSSSSKZ"
    forwarded = {"replication": value, "options": "-c work_mem=1MB -d 3", "application_name": "wal"}
    assert crossing.pool.asked == [(kind, forwarded)]
    assert server.backend_key_data(77, b"abcd") in welcome
    session = crossing.replicating
    assert (session.state, session.kind, session.word) == (State.LEASED, kind, "active")
    assert crossing.transport.protocol is session
    assert str(session).endswith("shop/app@192.0.2.1:40000")
    assert crossing.pool.stats.login_count == crossing.context.counters.admitted == crossing.pool.counters.leases == 1
    await crossing.close()


@pytest.mark.parametrize("value", ["false", "off", "0", "no", "n", "of"])
async def test_no_replication(value: str) -> None:
    lobby = Crossing()
    assert kinds(await lobby.arrive(replication=value)) == "RSSSSKZ"
    assert lobby.session.state is State.IDLE
    assert not lobby.pool.asked
    await lobby.end()


@pytest.mark.parametrize("value", ["", "o", "Database", "maybe", "2", "truely"])
async def test_values_that_mean_nothing(value: str) -> None:
    lobby = Crossing()
    error = last_error(await lobby.arrive(replication=value))
    assert (error.sqlstate, error.message) == ("22023", f'invalid value for parameter "replication": "{value}"')
    await lobby.end()


async def test_what_is_ignored_is_not_passed_on() -> None:
    crossing = Crossing(ignore_startup_parameters=("extra_float_digits", "options", "replication", "timezone"))
    await crossing.arrive(extra_float_digits="3", options="-c a.b=1", TimeZone="UTC", search_path="shop")
    ((_, settings),) = crossing.pool.asked
    assert settings == {
        "replication": "database",
        "options": "-c a.b=1",
        "TimeZone": "UTC",
        "search_path": "shop",
    }
    await crossing.close()


async def test_the_host_in_the_application_name() -> None:
    crossing = Crossing(application_name_add_host=True)
    await crossing.arrive(application_name="wal")
    assert crossing.pool.asked[0][1]["application_name"] == "wal - 192.0.2.1:40000"
    await crossing.close()


async def test_no_database_is_the_users() -> None:
    lobby = Crossing()
    packet = StartupMessage(parameters={"user": "shop", "replication": "true"})
    assert kinds(await lobby.send(packet.encode())) == "RSSSSKZ"
    await lobby.close()


async def test_the_console_does_not_replicate() -> None:
    lobby = Crossing()
    assert last_error(await lobby.arrive(database="pgbouncer")).sqlstate == "0A000"
    await lobby.end()


async def test_a_client_of_protocol_3_2() -> None:
    crossing = Crossing()
    parameters = {"user": "app", "database": "shop", "replication": "true"}
    welcome = await crossing.send(StartupMessage(PROTOCOL_3_2, parameters).encode())
    assert server.backend_key_data(77, b"abcd" * 8) in welcome
    await crossing.close()


async def test_a_message_for_everybody() -> None:
    crossing = Crossing(login_notify_message="closed on Sunday")
    assert kinds(await crossing.arrive()) == "RSSSSKNZ"
    await crossing.close()


async def test_what_postgres_says_to_the_login() -> None:
    lobby = Crossing()
    lobby.pool.error = BackendRefused("permission denied to start WAL sender", sqlstate="42501", detail="No.")
    error = last_error(await lobby.arrive())
    assert (error.severity, error.sqlstate, error.message, error.detail) == (
        "FATAL", "42501", "permission denied to start WAL sender", "No.",
    )  # fmt: skip
    await lobby.end()


async def test_a_client_that_leaves_before_there_is_a_connection() -> None:
    lobby = Crossing()
    lobby.pool.gate.clear()
    await lobby.arrive()
    lobby.session.eof_received()
    await lobby.settle()
    await lobby.end()


async def test_a_connection_that_is_lost_at_once() -> None:
    lobby = Crossing()
    replicate = lobby.pool.replicate

    async def lose(kind: Replication, settings: dict[str, str]) -> Walsender:
        walsender = await replicate(kind, settings)
        walsender.connection_lost(None)
        return walsender

    lobby.pool.replicate = lose  # type: ignore[method-assign]
    assert last_error(await lobby.arrive()).sqlstate == "08006"
    await lobby.end()


async def test_a_database_that_has_moved_meanwhile() -> None:
    lobby = Crossing()
    lobby.pool.gate.clear()
    await lobby.arrive()
    pool = lobby.pool
    lobby.context.pool = lambda entry, user: Greeter()  # type: ignore[assignment, return-value]
    pool.gate.set()
    await lobby.settle()
    assert last_error(lobby.transport.take()).message == "database configuration changed"
    assert pool.walsender.state is BackendState.CLOSED
    await lobby.end()


# -- the octets


async def test_what_comes_with_the_logins_passes_too() -> None:
    crossing = Crossing()
    crossing.pool.rest = server.notice("00000", "from Postgres")
    welcome = await crossing.arrive(client.query(b"IDENTIFY_SYSTEM"))
    assert kinds(welcome) == "RSSSSKZN"
    assert crossing.far.take() == client.query(b"IDENTIFY_SYSTEM")
    await crossing.close()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_octets_pass_as_they_come(size: int) -> None:
    """Whatever they are: these are no messages."""
    chance = random.Random(size)
    crossing = Crossing()
    await crossing.arrive()
    there, back = chance.randbytes(4000), chance.randbytes(4000)
    for at in range(0, 4000, size):
        crossing.says(there[at : at + size])
        assert crossing.far.take() == there[at : at + size]
        crossing.postgres_says(back[at : at + size])
        assert crossing.transport.take() == back[at : at + size]
    assert (crossing.pool.stats.received, crossing.pool.stats.sent) == (4000, 4000)
    await crossing.close()


async def test_a_client_that_does_not_read() -> None:
    crossing = Crossing()
    await crossing.arrive()
    session = crossing.replicating
    session.pause_writing()
    assert crossing.far.paused
    session.suspend()
    session.resume_writing()
    assert crossing.far.paused
    session.end_suspension()
    assert not crossing.far.paused
    assert not crossing.transport.paused
    await crossing.close()


async def test_a_client_that_did_not_read_its_login() -> None:
    crossing = Crossing()
    crossing.pool.gate.clear()
    await crossing.arrive()
    crossing.session.pause_writing()
    crossing.pool.gate.set()
    await crossing.settle()
    assert crossing.far.paused
    crossing.replicating.resume_writing()
    assert not crossing.far.paused
    await crossing.close()


async def test_a_postgres_that_does_not_read() -> None:
    crossing = Crossing()
    await crossing.arrive()
    crossing.pool.walsender.pause_writing()
    assert crossing.transport.paused
    crossing.pool.walsender.resume_writing()
    assert not crossing.transport.paused
    await crossing.close()


async def test_a_login_that_ends_while_the_gateway_is_suspended() -> None:
    crossing = Crossing()
    crossing.pool.gate.clear()
    await crossing.arrive()
    crossing.context.suspended = True
    crossing.session.suspend()
    crossing.pool.gate.set()
    await crossing.settle()
    assert crossing.far.paused
    assert crossing.transport.paused
    crossing.context.suspended = False
    crossing.replicating.end_suspension()
    assert not crossing.far.paused
    assert not crossing.transport.paused
    await crossing.close()


# -- the end


async def test_a_client_that_says_goodbye() -> None:
    crossing = Crossing()
    await crossing.arrive()
    crossing.says(client.query(b"IDENTIFY_SYSTEM")[:3])
    crossing.says(client.query(b"IDENTIFY_SYSTEM")[3:] + client.TERMINATE_MESSAGE[:2])
    assert crossing.replicating.state is State.LEASED
    crossing.says(client.TERMINATE_MESSAGE[2:])
    assert crossing.far.take() == client.query(b"IDENTIFY_SYSTEM") + client.TERMINATE_MESSAGE
    assert crossing.far.closing
    assert crossing.transport.closing
    assert crossing.pool.lost == ["replication client was closed"]
    crossing.says(b"more")
    await crossing.close()


@pytest.mark.parametrize(("said", "farewell"), [(b"", client.TERMINATE_MESSAGE), (HALF, b"")])
async def test_a_client_that_vanishes(said: bytes, farewell: bytes) -> None:
    crossing = Crossing()
    await crossing.arrive()
    if said:
        crossing.says(said)
    assert not crossing.replicating.eof_received()
    assert crossing.far.take() == said + farewell
    assert crossing.far.closing
    assert crossing.transport.take() == b""
    await crossing.close()


async def test_a_client_that_has_already_gone() -> None:
    crossing = Crossing()
    crossing.pool.gate.clear()
    await crossing.arrive(client.query(b"IDENTIFY_SYSTEM"))
    crossing.session.eof_received()
    crossing.pool.gate.set()
    await crossing.settle()
    assert crossing.far.take() == client.query(b"IDENTIFY_SYSTEM") + client.TERMINATE_MESSAGE
    assert crossing.transport.closing
    await crossing.close()


@pytest.mark.parametrize(
    ("heard", "told"),
    [
        (b"", "08006"),
        (WAL, ""),
        (server.error("57P01", "terminating connection", severity="FATAL"), ""),
        (server.error("42601", "syntax error") + server.ready(), "08006"),
    ],
)
async def test_a_postgres_that_vanishes(heard: bytes, told: str) -> None:
    crossing = Crossing()
    await crossing.arrive()
    if heard:
        crossing.postgres_says(heard)
    crossing.pool.walsender.connection_lost(None)
    said = crossing.transport.take()
    assert said.startswith(heard)
    assert (last_error(said[len(heard) :]).sqlstate if told else said[len(heard) :].decode()) == told
    assert crossing.transport.closing
    crossing.far.closing = True
    await crossing.close()


@pytest.mark.parametrize(("heard", "told"), [(b"", True), (WAL, False)])
async def test_a_session_that_is_ended(heard: bytes, told: bool) -> None:
    crossing = Crossing()
    await crossing.arrive()
    if heard:
        crossing.postgres_says(heard)
    crossing.replicating.end_if_idle()
    assert crossing.replicating.state is State.LEASED
    crossing.replicating.kill(ShuttingDown("admin forced disconnect"))
    said = crossing.transport.take()[len(heard) :]
    assert bool(said) is told
    if told:
        assert last_error(said).message == "admin forced disconnect"
    assert crossing.far.closing
    await crossing.close()


async def test_a_walsender_that_its_pool_closes() -> None:
    crossing = Crossing()
    await crossing.arrive()
    crossing.pool.walsender.close("database configuration changed")
    error = last_error(crossing.transport.take())
    assert (error.sqlstate, error.message) == ("57P01", "database configuration changed")
    assert crossing.transport.closing
    await crossing.close()


async def test_a_reload_does_not_touch_it() -> None:
    crossing = Crossing()
    await crossing.arrive()
    crossing.replicating.reconfigure()
    assert crossing.replicating.state is State.LEASED
    assert crossing.replicating.terms.client_idle_timeout == 0
    await crossing.close()


async def test_it_can_be_cancelled_at_any_time() -> None:
    crossing = Crossing()
    await crossing.arrive()
    session = crossing.replicating
    assert session.backend is crossing.pool.walsender
    assert session.backend.runs
    assert session.backend.replies.queue
    assert not session.backend.is_setting
    session.backend.cancels += 1
    session.backend.cancel_ended()
    assert session.state is State.LEASED
    await crossing.close()
