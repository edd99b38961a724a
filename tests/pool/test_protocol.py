"""For which protocol a server is asked, what is taken of what it says to that, and what is remembered of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.debian_postgres import DebianPostgres, debian
from helpers.protocol_server import ProtocolServer, protocol_server
from pgtrunk.wire import backend as b
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2
from pgtrunk_gateway.auth import Plain
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable
from pgtrunk_gateway.pool import host as host_module
from pgtrunk_gateway.pool.connect import log_in
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.auth import Derivation, ScramKeys
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres
    from pgtrunk_gateway.pool.handshake import Handshake

__all__ = ["debian"]

OLD, NEW = PROTOCOL_3_0, PROTOCOL_3_2


def new_host() -> Host:
    return Host(lambda: 1.0)


async def derive(derivation: Derivation) -> ScramKeys:
    return derivation.run()


def ignore(_: Any) -> None: ...


async def login(server: ProtocolServer, host: Host | None, timeout: float = 10.0) -> Handshake:
    """One login, whose connection is closed at once."""
    target = Target(host="127.0.0.1", port=server.port, dbname="shop", user="app")
    opened = await log_in(target, timeout=timeout, derive=derive, tune=ignore, host=host)
    opened.transport.abort()
    return opened.handshake


# -- what is asked for -------------------------------------------------------------------------------------------------


async def test_a_server_is_asked_for_3_2() -> None:
    host = new_host()
    async with protocol_server() as server:
        for _ in range(2):
            assert (await login(server, host)).protocol == NEW
        assert server.asked == [NEW, NEW]


async def test_whoever_never_cancels_asks_for_3_0() -> None:
    async with protocol_server(newest=OLD, turns_down=b"") as server:
        assert (await login(server, None)).protocol == OLD
        assert server.asked == [OLD]


async def test_a_server_that_negotiates_is_asked_each_time() -> None:
    """It costs nothing, and it may be another one tomorrow."""
    host = new_host()
    async with protocol_server(newest=OLD) as server:
        for _ in range(2):
            handshake = await login(server, host)
            assert (handshake.protocol, handshake.key) == (OLD, BackendKeyData(7, b"1234"))
        assert server.asked == [NEW, NEW]


REFUSALS = {
    "Postgres of old": b.error("0A000", "unsupported frontend protocol 3.2: server supports 1.0 to 3.0"),
    "poolers": b.error("08P01", "unsupported protocol version"),
    "no SQLSTATE": b"E\0\0\0\x0cMwhat?\0\0",
    "the format of protocol 2": b"EFATAL:  unsupported frontend protocol 3.2\n\0",
    "nonsense": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an error in part": b"E\0\0\0\x40SFATAL\0",
    "not a word": b"",
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_that_refuses_it_is_asked_for_3_0_from_then_on(
    refusal: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pgtrunk_gateway")
    host = new_host()
    async with protocol_server(newest=OLD, turns_down=REFUSALS[refusal]) as server:
        for _ in range(3):
            assert (await login(server, host)).protocol == OLD
        assert server.asked == [NEW, OLD, OLD, OLD]
        told = [record.message for record in caplog.records if "asked for protocol 3.2" in record.message]
        assert len(told) == 1
        assert f"127.0.0.1:{server.port}: " in told[0]
        # Of another server nothing is known by that.
        await login(server, new_host())
        assert server.asked[4:] == [NEW, OLD]
        # It is forgotten in the end: the server may be another one by then.
        monkeypatch.setattr(host_module, "_REMEMBERED", 0.0)
        host = new_host()
        await login(server, host)
        server.newest = NEW
        assert (await login(server, host)).protocol == NEW
        assert server.asked[6:] == [NEW, OLD, NEW]


@pytest.mark.parametrize("sqlstate", ["28000", "28P01", "3D000", "53300", "57P03"])
async def test_other_refusals_are_no_question_of_the_protocol(sqlstate: str) -> None:
    host = new_host()
    async with protocol_server(newest=OLD, turns_down=b.error(sqlstate, "no", severity="FATAL")) as server:
        for _ in range(2):
            with pytest.raises(BackendRefused) as raised:
                await login(server, host)
            assert raised.value.sqlstate == sqlstate
        assert server.asked == [NEW, NEW]


async def test_a_server_that_refuses_3_0_too_is_remembered_for_nothing() -> None:
    """It may have been on its way down; who is told of the last refusal."""
    host = new_host()
    async with protocol_server(newest=0, turns_down=b.error("08P01", "no", severity="FATAL")) as server:
        for _ in range(2):
            with pytest.raises(BackendRefused, match="no"):
                await login(server, host)
        assert server.asked == [NEW, OLD, NEW, OLD]
    async with protocol_server(newest=0, turns_down=b"") as server:
        with pytest.raises(BackendUnavailable, match="lost during login"):
            await login(server, host)
        assert server.asked == [NEW, OLD]


async def test_a_server_that_says_nothing_is_asked_for_3_0_the_next_time() -> None:
    host = new_host()
    async with protocol_server(newest=OLD, hangs=True) as server:
        with pytest.raises(BackendUnavailable, match="connect timeout"):
            await login(server, host, timeout=0.3)
        for _ in range(2):
            assert (await login(server, host)).protocol == OLD
        assert server.asked == [NEW, OLD, OLD]


async def test_a_server_that_says_nothing_to_anybody_is_only_slow() -> None:
    host = new_host()
    async with protocol_server(newest=0, hangs=True) as server:
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="connect timeout"):
                await login(server, host, timeout=0.3)
        server.newest = NEW
        assert (await login(server, host)).protocol == NEW
        assert server.asked == [NEW, OLD, NEW]


async def test_one_that_has_answered_by_then_is_not_doubted() -> None:
    host = new_host()
    async with protocol_server() as server:
        host.said_nothing()
        host.took(NEW)
        assert (await login(server, host)).protocol == NEW


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [OLD, NEW], ids=["3.0", "3.2"])
@pytest.mark.parametrize("size", [4, 8, 32, 256])
async def test_secrets_of_4_to_256_octets(size: int, newest: int) -> None:
    secret = bytes(range(size))
    async with protocol_server(newest=newest, secret=secret) as server:
        assert (await login(server, new_host())).key == BackendKeyData(7, secret)


@pytest.mark.parametrize("size", [0, 3, 257])
async def test_other_secrets_are_refused(size: int) -> None:
    async with protocol_server(secret=bytes(size)) as server:
        with pytest.raises(BackendRefused, match=f"BackendKeyData has {size + 4} octets; it must have 8 to 260"):
            await login(server, new_host())
        assert server.asked == [NEW]


async def test_a_server_that_gives_no_key() -> None:
    async with protocol_server(secret=None) as server:
        assert (await login(server, new_host())).key is None


# -- Postgres itself ---------------------------------------------------------------------------------------------------


async def test_postgres_18_speaks_3_2(postgres: EmbeddedPostgres) -> None:
    assert await _of(postgres) == (NEW, 32)


async def test_postgres_15_says_that_it_does_not(debian: DebianPostgres) -> None:
    assert await _of(debian) == (OLD, 4)


async def _of(postgres: EmbeddedPostgres) -> tuple[int, int]:
    """What is spoken with it, and how long its secrets are."""
    host = new_host()
    target = Target(
        host=postgres.host, port=postgres.port, dbname="postgres", user=postgres.user, secret=Plain(postgres.password)
    )
    opened = await log_in(target, timeout=20, derive=derive, tune=ignore, host=host)
    opened.transport.abort()
    assert host.next_protocol() == NEW
    assert opened.handshake.key is not None
    return opened.handshake.protocol, len(opened.handshake.key.secret)
