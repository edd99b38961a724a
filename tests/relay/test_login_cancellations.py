"""A client that is gone at any await of its login, and a gateway that ends there: nothing of the login is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cancelling import MOMENTS, CancelAt, Moment
from helpers.lobby import USERS, Lobby
from pgtrunk.wire import frontend as client
from pgtrunk.wire.startup import CancelRequest, StartupMessage
from pgtrunk_gateway.auth import ClientExchange, Found, Plain, Userlist
from pgtrunk_gateway.relay.login import SessionLogin
from pgtrunk_gateway.session.state import State

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import DatabaseConfig

AWAITS = 5
"""Startup packet, first message, derivation, proof, first login at the server."""
LOOKED_UP = AWAITS + 1
"""The same, and the answer of auth_query behind the startup packet."""


class EndAt(CancelAt):
    """Has the session end, as its own code would, where CancelAt would cancel the task."""

    def __init__(self, coroutine: Any, at: int, moment: Moment, end: Callable[[], object]) -> None:
        super().__init__(coroutine, at, moment)
        self._end = end

    def _cancel(self, task: asyncio.Task[Any], awaited: asyncio.Future[Any] | None) -> None:
        if self._moment == "pending" or awaited is None:
            asyncio.get_running_loop().call_soon(self._end)
        else:
            awaited.add_done_callback(lambda _: self._end())


def lobby_with(users: Userlist | None) -> tuple[Lobby, asyncio.Event]:
    """Without ``users`` they are found by auth_query, once the event is set."""
    lobby, answers = Lobby(auth_type="scram-sha-256", users=users, auth_user="asker"), asyncio.Event()

    async def find(_database: DatabaseConfig, user: str) -> Found:
        await answers.wait()
        return Found(user, (Plain("secret"),))

    lobby.context.lookup = find
    return lobby, answers


async def log_in(lobby: Lobby, answers: asyncio.Event) -> None:
    """The client's side, as far as it comes. Everything that a login waits for lets it wait."""
    exchange = ClientExchange(nonce=b"n" * 18)
    lobby.deriving.clear()
    lobby.pool.gate.clear()
    await lobby.settle()
    await lobby.startup()
    answers.set()
    await lobby.settle()
    lobby.transport.take()
    said = await lobby.send(client.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
    lobby.deriving.set()
    await lobby.settle()
    if lobby.session.state is State.LOGIN and said:
        derivation = exchange.challenge(said[9:], "secret")
        await lobby.send(client.sasl_response(exchange.final(derivation.run())))
    lobby.pool.gate.set()
    await lobby.settle()


ENDINGS: dict[str, Callable[[Lobby], object]] = {
    "client gone": lambda lobby: lobby.session.connection_lost(ConnectionResetError()),
    "client says no more": lambda lobby: lobby.session.eof_received(),
    "gateway ends": lambda lobby: lobby.session.kill(),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("users", "at"),
    [(users, at + 1) for users, awaits in ((USERS, AWAITS), (None, LOOKED_UP)) for at in range(awaits)],
)
async def test_a_login_that_ends_at_each_await(
    users: Userlist | None, at: int, moment: Moment, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SessionLogin._run
    attempts: list[EndAt] = []

    async def ended(self: SessionLogin) -> None:
        attempts.append(EndAt(run(self), at, moment, lambda: ENDINGS[ending](lobby)))
        await attempts[0]

    monkeypatch.setattr(SessionLogin, "_run", ended)
    lobby, answers = lobby_with(users)
    await log_in(lobby, answers)
    await lobby.settle()
    assert attempts[0].hit
    if ending != "client says no more":
        # A client that has said all that a login needs may still be welcomed, and then be found gone.
        assert lobby.session.state is State.CLOSED
    if ending != "client gone":
        lobby.session.connection_lost(None)
    await lobby.settle()
    assert lobby.context.sessions == set()
    assert lobby.context.admitted == 0
    assert lobby.cancels.keys == []
    assert lobby.context.counters.opened == lobby.context.counters.closed == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("users", "awaits"), [(USERS, AWAITS), (None, LOOKED_UP)])
async def test_a_whole_login_has_no_more_awaits_than_that(
    users: Userlist | None, awaits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SessionLogin._run
    attempts: list[CancelAt] = []

    async def counted(self: SessionLogin) -> None:
        attempts.append(CancelAt(run(self), awaits + 1, "pending"))
        await attempts[0]

    monkeypatch.setattr(SessionLogin, "_run", counted)
    lobby, answers = lobby_with(users)
    await log_in(lobby, answers)
    assert lobby.session.state is State.IDLE
    assert not attempts[0].hit
    await lobby.end()


@pytest.mark.parametrize("packet", [CancelRequest(7, b"1234"), StartupMessage(parameters={"user": "app"})])
async def test_a_client_that_half_closes_behind_its_first_packet(packet: CancelRequest | StartupMessage) -> None:
    """A cancel request often ends so, and counts; a login that needs more is over."""
    lobby = Lobby(auth_type="scram-sha-256", users=USERS)
    lobby.session.data_received(packet.encode())
    assert lobby.session.eof_received() is True
    await lobby.settle()
    assert lobby.session.state is State.CLOSED
    assert lobby.cancels.served == ([packet] if isinstance(packet, CancelRequest) else [])
    await lobby.end()


async def test_a_client_that_is_gone_while_the_first_backend_is_waited_for() -> None:
    """Nothing more is read by then, so that the end has to be seen by itself."""
    lobby = Lobby()
    lobby.pool.gate.clear()
    await lobby.startup()
    lobby.session.eof_received()
    assert lobby.session.state is State.CLOSED
    await lobby.end()


async def test_one_that_has_said_more_by_then_is_heard() -> None:
    lobby = Lobby()
    lobby.pool.gate.clear()
    startup = StartupMessage(parameters={"user": "app", "database": "shop"}).encode()
    await lobby.send(startup + client.TERMINATE_MESSAGE)
    lobby.session.eof_received()
    assert not lobby.transport.closing
    lobby.pool.gate.set()
    await lobby.settle()
    assert lobby.session.state is State.CLOSED
    assert lobby.context.counters.admitted == 1
    await lobby.end()
