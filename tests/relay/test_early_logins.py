"""Logins in early data, which may be a replay: what is done before the handshake is complete, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.early import EarlyTransport
from helpers.lobby import USERS, Lobby
from helpers.waiting import until
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import CancelRequest, SSLRequest, StartupMessage
from pgtrunk_gateway.auth import MD5, ClientExchange, Derivation, Found, Userlist
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.session.state import State

STARTUP = StartupMessage(parameters={"user": "app", "database": "shop"}).encode()
FIRST = client.sasl_initial_response("SCRAM-SHA-256", ClientExchange(nonce=b"n" * 18).first())
FORGED = client.sasl_response(b"c=biws,r=bm5u,p=" + b"A" * 43 + b"=")
QUERY = client.query(b"delete from orders")
CANCEL = CancelRequest(7, b"1234")


def startup(**parameters: str) -> bytes:
    return StartupMessage(parameters={"user": "app", "database": "shop", **parameters}).encode()


def kinds(data: bytes) -> str:
    return "".join(chr(kind) for kind, _, _ in messages(data))


class Early:
    """A lobby whose client's connection has not completed its handshake, and what its gateway was asked for."""

    def __init__(self, auth_type: Any = "trust", **more: Any) -> None:
        self.transport = EarlyTransport()
        users = more.pop("users", None if auth_type in ("trust", "any") else USERS)
        self.lobby = Lobby(auth_type=auth_type, users=users, transport=self.transport, **more)
        self.pools: list[str] = []
        self.derived: list[Derivation] = []
        context, pool, derive = self.lobby.context, self.lobby.pool, self.lobby.context.derive

        def asked(entry: DatabaseConfig, user: str) -> Any:
            self.pools.append(user)
            return pool

        def deriving(derivation: Derivation) -> Any:
            self.derived.append(derivation)
            return derive(derivation)

        context.pool, context.derive = asked, deriving

    def check_nothing_done(self) -> None:
        """A replay that ends here has had no effect."""
        lobby = self.lobby
        assert lobby.session.state is State.LOGIN
        assert not self.transport.closing
        assert (lobby.context.counters.admitted, lobby.context.counters.refused) == (0, 0)
        assert lobby.context.admitted == 0
        assert not lobby.context.tally.databases
        assert not (self.pools or self.derived)
        assert lobby.cancels.keys == lobby.cancels.served == []
        assert lobby.context.limiter.allow("192.0.2.1", asyncio.get_running_loop().time()) == 0.0

    async def confirm(self) -> bytes:
        """The handshake is complete -> what the gateway says then."""
        self.transport.confirm()
        return await self.lobby.send(b"")


TABLE = {
    "trust": ("trust", STARTUP, "", "RSSSSKZ"),
    "trust, with a query": ("trust", STARTUP + QUERY, "", "RSSSSKZ"),
    "half a packet": ("trust", STARTUP[:20], "", ""),
    "encryption": ("trust", SSLRequest().encode(), "N", ""),
    "scram": ("scram-sha-256", STARTUP, "R", ""),
    "scram, with the first message": ("scram-sha-256", STARTUP + FIRST, "RR", ""),
    "scram, with a proof": ("scram-sha-256", STARTUP + FIRST + FORGED, "RR", "E"),
    "scram, with garbage": ("scram-sha-256", STARTUP + client.password(b"guess"), "R", "E"),
    "scram, with a query": ("scram-sha-256", STARTUP + QUERY, "R", "E"),
    "a password": ("plain", STARTUP + client.password(b"secret"), "R", "RSSSSKZ"),
    "a wrong password": ("plain", STARTUP + client.password(b"guess"), "R", "E"),
    "a hash": ("md5", STARTUP + client.password(MD5.of("app", "secret").answer(bytes(range(4)))), "R", "RSSSSKZ"),
    "a wrong hash": ("md5", STARTUP + client.password(b"md5" + b"0" * 32), "R", "E"),
    "no certificate": ("cert", STARTUP, "", "E"),
    "no such database": ("trust", startup(database="shoe"), "", "E"),
    "no user": ("trust", startup(user=""), "", "E"),
    "an unknown user": ("scram-sha-256", startup(user="nobody") + FIRST, "RR", ""),
    "no packet": ("trust", b"GET / HTTP/1.1\r\n\r\n", "", "E"),
    "leaving": ("scram-sha-256", STARTUP + client.TERMINATE_MESSAGE, "R", "E"),
    "replication": ("trust", startup(replication="database"), "", "E"),
    "a setting that is none": ("trust", startup(**{"work mem": "1GB"}), "", "E"),
}
"""By what comes in early data: what the gateway says at once, and when the handshake is complete."""


@pytest.mark.parametrize("case", TABLE)
async def test_nothing_ends_before_the_handshake_is_complete(case: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    auth_type, flight, at_once, later = TABLE[case]
    early = Early(auth_type)
    assert (said := await early.lobby.send(flight)).startswith(b"N") or kinds(said) == at_once
    early.check_nothing_done()
    assert not caplog.text
    assert kinds(await early.confirm()) == later
    counters = early.lobby.context.counters
    assert (counters.admitted, counters.refused) == (int(later.endswith("Z")), int(later == "E"))
    assert bool(caplog.text) == bool(later)
    await early.lobby.end()


@pytest.mark.parametrize("auth_type", ["plain", "trust"])
async def test_no_login_comes_to_anything_whose_address_was_not_its_own(auth_type: str) -> None:
    """Anybody can send early data from any address: its failures would be held against that."""
    early = Early(auth_type)
    await early.lobby.send(STARTUP + (client.password(b"guess") if auth_type == "plain" else b""))
    early.transport.peer = ("198.51.100.7", 40000)
    assert await early.confirm() == b""
    assert early.lobby.session.state is State.CLOSED
    counters, limiter, now = (
        early.lobby.context.counters,
        early.lobby.context.limiter,
        asyncio.get_running_loop().time(),
    )
    assert (counters.admitted, counters.refused) == (0, 0)
    assert limiter.allow("192.0.2.1", now, pending=1) == limiter.allow("198.51.100.7", now, pending=1) == 0.0
    assert not (early.pools or early.derived)
    await early.lobby.end()


async def test_another_port_is_the_same_address() -> None:
    early = Early()
    await early.lobby.send(STARTUP)
    early.transport.peer = ("192.0.2.1", 50000)
    assert kinds(await early.confirm()) == "RSSSSKZ"
    await early.lobby.end()


@pytest.mark.parametrize("case", TABLE)
async def test_a_replay_leaves_no_trace(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its handshake is never completed: whoever sends it has not the keys for that."""
    caplog.set_level("INFO")
    auth_type, flight, _, _ = TABLE[case]
    early = Early(auth_type)
    for _ in range(3):
        await early.lobby.send(flight)
    early.check_nothing_done()
    early.lobby.session.connection_lost(ConnectionResetError("handshake timeout"))
    await early.lobby.end()
    assert not caplog.text
    counters = early.lobby.context.counters
    assert (counters.admitted, counters.refused) == (0, 0)
    assert not (early.pools or early.derived)
    assert early.lobby.context.limiter.allow("192.0.2.1", asyncio.get_running_loop().time()) == 0.0
    assert len(asyncio.all_tasks()) == 1


async def test_octet_by_octet_it_is_the_same() -> None:
    early = Early("scram-sha-256")
    said = b""
    for octet in STARTUP + FIRST + FORGED:
        said += await early.lobby.send(bytes((octet,)))
    assert kinds(said) == "RR"
    early.check_nothing_done()
    assert kinds(await early.confirm()) == "E"
    await early.lobby.end()


async def test_scram_goes_on_from_its_early_challenge() -> None:
    early = Early("scram-sha-256")
    exchange = ClientExchange(nonce=b"n" * 18)
    said = await early.lobby.send(STARTUP + client.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
    *_, (_, start, end) = messages(said)
    derivation = exchange.challenge(said[start + 9 : end], "secret")
    assert await early.confirm() == b""
    assert kinds(await early.lobby.send(client.sasl_response(exchange.final(derivation.run())))) == "RRSSSSKZ"
    assert len(early.derived) == 1
    await early.lobby.end()


async def test_a_captured_proof_is_no_use_in_early_data() -> None:
    """It answers a challenge that will not come again; and it is not looked at before the handshake is complete."""
    first = Early("scram-sha-256")
    exchange = ClientExchange(nonce=b"n" * 18)
    initial = client.sasl_initial_response("SCRAM-SHA-256", exchange.first())
    said = await first.lobby.send(STARTUP + initial)
    *_, (_, start, end) = messages(said)
    proof = client.sasl_response(exchange.final(exchange.challenge(said[start + 9 : end], "secret").run()))
    await first.confirm()
    assert kinds(await first.lobby.send(proof)).endswith("Z")
    await first.lobby.end()

    replay = Early("scram-sha-256")
    replay.lobby.context.random = lambda size: bytes(range(1, size + 1))
    assert kinds(await replay.lobby.send(STARTUP + initial + proof)) == "RR"
    replay.check_nothing_done()
    assert kinds(await replay.confirm()) == "E"
    await replay.lobby.end()


async def test_a_cancel_request_waits() -> None:
    early = Early()
    assert await early.lobby.send(CANCEL.encode()) == b""
    early.check_nothing_done()
    await early.confirm()
    assert early.lobby.cancels.served == [CANCEL]
    await early.lobby.end()


@pytest.mark.parametrize("auth_type", ["any", "trust", "plain"])
async def test_the_console_is_entered_later(auth_type: str) -> None:
    early = Early(auth_type, admin_users=frozenset({"app"}), stats_users=frozenset())
    entered: list[Any] = []

    class Console:
        def enter(self, session: Any, visit: Any, rest: bytes, *, over: bool) -> None:
            entered.append((visit.user, rest))
            visit.place.leave()

    early.lobby.context.console = Console()
    early.lobby.context.config = Config(auth_type=auth_type, admin_users=frozenset({"app"}))  # type: ignore[arg-type]
    password = client.password(b"secret") if auth_type == "plain" else b""
    await early.lobby.send(startup(database="pgbouncer") + password + client.query(b"SHUTDOWN"))
    early.check_nothing_done()
    assert entered == []
    await early.confirm()
    assert entered == [("app", client.query(b"SHUTDOWN"))]
    await early.lobby.end()


async def test_a_replication_connection_begins_later() -> None:
    early = Early()
    begun: list[object] = []
    early.lobby.context.replicate = lambda *args, **more: None
    early.lobby.pool.replicate = lambda kind, settings: begun.append(kind)  # type: ignore[attr-defined]
    await early.lobby.send(startup(replication="database"))
    early.check_nothing_done()
    assert begun == []
    await early.lobby.end()


async def test_a_user_is_looked_up_at_once() -> None:
    """That is what the round trip is saved for; it reads, and no backend of a pool is used for it."""
    early = Early("scram-sha-256", auth_user="asker")
    asked: list[str] = []

    async def lookup(_database: DatabaseConfig, user: str) -> Found | None:
        asked.append(user)
        return None

    early.lobby.context.lookup = lookup
    assert kinds(await early.lobby.send(startup(user="found") + FIRST)) == "RR"
    assert asked == ["found"]
    early.check_nothing_done()
    await early.lobby.end()


async def test_limits_are_looked_at_later() -> None:
    early = Early(max_client_conn=0)
    assert await early.lobby.send(STARTUP) == b""
    early.check_nothing_done()
    assert kinds(await early.confirm()) == "E"
    await early.lobby.end()


async def test_a_gateway_that_drains_says_so_later() -> None:
    early = Early("scram-sha-256")
    early.lobby.context.draining = True
    assert kinds(await early.lobby.send(STARTUP + FIRST)) == "RR"
    early.check_nothing_done()
    await early.lobby.end()


async def test_what_is_sent_ahead_is_bounded() -> None:
    early = Early()
    await early.lobby.send(STARTUP)
    for _ in range(70):
        early.lobby.session.data_received(client.query(b"x" * 1000))
    assert early.transport.paused
    early.check_nothing_done()
    await early.confirm()
    assert not early.transport.paused
    await early.lobby.end()


async def test_a_login_that_takes_too_long_in_early_data_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    early = Early(client_login_timeout=0.01)
    await early.lobby.send(STARTUP)
    await until(lambda: early.transport.closing)
    assert early.transport.take() == b""
    assert early.lobby.context.counters.refused == 0
    assert not caplog.text
    await early.lobby.end()


async def test_a_client_that_left_before_is_not_waited_for() -> None:
    early = Early()
    await early.lobby.send(STARTUP)
    early.lobby.session.eof_received()
    early.check_nothing_done()
    assert await early.confirm() == b""
    assert early.lobby.session.state is State.CLOSED
    assert early.pools == []
    await early.lobby.end()


async def test_a_certificate_that_the_ticket_names_is_known_at_once() -> None:
    """Nothing ends for it; see also what a query may do."""
    early = Early("cert", users=Userlist({}))
    assert await early.lobby.send(STARTUP) == b""
    early.check_nothing_done()
    refused = await early.confirm()
    *_, (_, start, end) = messages(refused)
    assert server.parse_error(refused[start + 5 : end]).message == "certificate authentication failed"
    await early.lobby.end()
