"""Which way a dial takes, on loopback, with UDP swallowed, refused and let through again."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.both_ways import both_ways
from helpers.certificates import SERVER_AUTH, authority
from helpers.quic_pair import Recorder, identities
from helpers.tcp_gateway import TcpGateway
from helpers.trunks import until
from pgtrunk.address import Address
from pgtrunk.backoff import Backoff
from pgtrunk.dialer import Dialer
from pgtrunk.errors import CertificateError, GatewayUnreachable, UdpBlocked
from pgtrunk.quic.client import ClientConnection
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.tcp.blockage import Blockage
from pgtrunk.tcp.cap import Cap
from pgtrunk.tcp.carrier import TcpCarrier
from pgtrunk.tcp.dialer import Knocker, TcpDialer
from pgtrunk.tcp.fallback import Fallback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgtrunk.connection import Connection
    from pgtrunk.tcp.fallback import Transport


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Sockets that nobody has closed warn when they are collected, and warnings are errors."""
    gc.collect()
    yield
    gc.collect()


@asynccontextmanager
async def fallback(
    port: int, transport: Transport = "auto", *, most: int = 10, timeout: float = 20, **settings: Any
) -> AsyncIterator[Fallback]:
    """One with little patience; what it has opened is closed by the test."""
    config = ClientConfig(**{"ca_data": identities()[0].pem, **settings})
    addresses = [Address("127.0.0.1", port)]
    made = Fallback(
        transport,
        Dialer(addresses, config, timeout=timeout),
        TcpDialer(addresses, config, Cap(most), timeout=timeout),
        Knocker(addresses, config, timeout=timeout),
        timeout=timeout,
        head_start=0.1,
    )
    made.blockage = Blockage(Backoff(base=0.05, ceiling=0.2))
    tasks = asyncio.all_tasks()
    try:
        yield made
    finally:
        made.stop()
        await made.wait_stopped()
        await until(lambda: asyncio.all_tasks() == tasks)


async def ended(connection: Connection) -> None:
    connection.close()
    async with asyncio.timeout(20):
        await connection.wait_closed()


async def works(connection: Connection) -> None:
    transport, protocol = connection.open_stream(Recorder, on_closed=lambda _: None)
    transport.write(b"hello")
    await until(lambda: protocol.data == b"hello")
    transport.close()
    await until(lambda: protocol.lost)


async def test_quic_where_it_is_answered() -> None:
    async with both_ways(silent=False) as gateway, fallback(gateway.port) as made:
        connection = await made.dial()
        assert isinstance(connection, ClientConnection)
        await works(connection)
        await ended(connection)
        assert gateway.tcp.connections == []
        assert made.stats().fallbacks == 0


async def test_tcp_where_udp_is_swallowed_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with both_ways() as gateway, fallback(gateway.port) as made:
        with caplog.at_level(logging.WARNING, "pgtrunk"):
            for _ in range(3):
                connection = await made.dial()
                assert isinstance(connection, TcpCarrier)
                await works(connection)
                await ended(connection)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "UDP is not answered, but TCP is" in said[0]
        assert "at most 10 of them (tcp_connections)" in said[0]
        stats = made.stats()
        assert (stats.fallbacks, stats.returns, stats.udp_blocked) == (1, 0, 1)


async def test_once_blocked_nobody_waits_for_udp() -> None:
    async with both_ways() as gateway, fallback(gateway.port) as made:
        first = await made.dial()
        made._head_start = 20.0
        second = await made.dial()
        assert isinstance(second, TcpCarrier)
        for each in (first, second):
            await ended(each)


async def test_tcp_where_udp_is_refused() -> None:
    """As firewalls do, and gateways with ``quic_enabled = off``."""
    async with TcpGateway() as gateway, fallback(gateway.port) as made:
        made._head_start = 20.0
        connection = await made.dial()
        assert isinstance(connection, TcpCarrier)
        await works(connection)
        await ended(connection)


async def test_back_to_quic_when_udp_is_let_through(caplog: pytest.LogCaptureFixture) -> None:
    async with both_ways() as gateway, fallback(gateway.port) as made:
        carrier = await made.dial()
        assert isinstance(carrier, TcpCarrier)
        left: list[Any] = []
        carrier.on_leave = left.append
        await asyncio.sleep(0.15)
        assert left == []
        with caplog.at_level(logging.INFO, "pgtrunk"):
            gateway.udp.is_silent = False
            await until(lambda: left)
        assert left[0].reason == "UDP is let through again"
        assert "UDP is answered, after" in caplog.text
        connection = await made.dial()
        assert isinstance(connection, ClientConnection)
        for each in (carrier, connection):
            await ended(each)
        stats = made.stats()
        assert (stats.fallbacks, stats.returns, stats.udp_blocked) == (1, 1, 0)


async def test_udp_that_is_only_late_is_taken_when_it_comes() -> None:
    """TCP was faster: then what QUIC is still about is the first look."""
    async with both_ways() as gateway, fallback(gateway.port) as made:
        carrier = await made.dial()
        assert isinstance(carrier, TcpCarrier)
        gateway.udp.is_silent = False
        await until(lambda: carrier.leave is not None)
        assert made._watch is not None
        await until(made._watch.done)
        await ended(carrier)


async def test_nobody_looks_where_nobody_needs_it() -> None:
    async with both_ways() as gateway, fallback(gateway.port, timeout=0.6) as made:
        await ended(await made.dial())
        assert made._watch is not None
        await until(made._watch.done)
        assert made.blockage.is_there
        gateway.udp.is_silent = False
        # Whoever comes next goes by what is known, and has somebody look.
        carrier = await made.dial()
        assert isinstance(carrier, TcpCarrier)
        await until(lambda: not made.blockage.is_there)
        await ended(carrier)


async def test_quic_again_where_tcp_is_gone() -> None:
    async with both_ways() as gateway, fallback(gateway.port) as made:
        await ended(await made.dial())
        gateway.udp.is_silent = False
        await gateway.tcp.vanish()
        connection = await made.dial()
        assert isinstance(connection, ClientConnection)
        await ended(connection)
        assert not made.blockage.is_there


async def test_a_wrong_certificate_over_quic_is_not_hidden_by_tcp() -> None:
    stranger = authority("stranger").issue("gateway", usage=(SERVER_AUTH,), names=("127.0.0.1",))
    async with both_ways(silent=False, identity=stranger) as gateway:
        async with fallback(gateway.port, ca_data=authority("another").pem) as made:
            with pytest.raises(CertificateError):
                await made.dial()
        assert gateway.tcp.connections == []


async def test_a_wrong_certificate_over_tcp_is_said() -> None:
    wrong = identities()[0].issue("gateway", usage=(SERVER_AUTH,), names=("other.example",))
    async with both_ways(identity=wrong) as gateway, fallback(gateway.port, timeout=0.6) as made:
        with pytest.raises(CertificateError, match=r"it is for other\.example, not for '127.0.0.1'") as caught:
            await made.dial()
        assert caught.value.presented == ("other.example",)
        assert not made.blockage.is_there


async def test_a_gateway_without_tls_says_what_to_do() -> None:
    async with both_ways(tls=False) as gateway, fallback(gateway.port, timeout=0.6) as made:
        words = r"UDP to .* is not answered, and TCP there does not offer TLS: .* client_tls_sslmode=require"
        with pytest.raises(UdpBlocked, match=words):
            await made.dial()
        assert gateway.tcp.protocols == []


async def test_a_gateway_without_tls_is_asked_again_late() -> None:
    async with both_ways(tls=False) as gateway, fallback(gateway.port, timeout=0.6) as made:
        with pytest.raises(UdpBlocked):
            await made.dial()
        asked = len(gateway.tcp.connections)
        made.quic = Slow(heard=False)  # type: ignore[assignment]
        assert isinstance(await made.dial(), Slow)
        assert len(gateway.tcp.connections) == asked
    async with both_ways() as gateway, fallback(gateway.port, timeout=2.1) as made:
        made._lacks_tls = True
        carrier = await made.dial()
        assert isinstance(carrier, TcpCarrier)
        await ended(carrier)
        assert not made._lacks_tls


async def test_nobody_there_at_all() -> None:
    async with both_ways() as gateway, fallback(gateway.port, timeout=0.6) as made:
        await gateway.tcp.vanish()
        words = r"did not answer within .*; over TCP: .* nothing listens on that TCP port"
        with pytest.raises(GatewayUnreachable, match=words) as caught:
            await made.dial()
        assert not isinstance(caught.value, UdpBlocked)
        assert not made.blockage.is_there


async def test_both_refused_is_said_at_once() -> None:
    async with TcpGateway() as gateway, fallback(gateway.port) as made:
        await gateway.vanish()
        made._head_start = 20.0
        words = "nothing listens on that UDP port; over TCP: .* nothing listens on that TCP port"
        with pytest.raises(GatewayUnreachable, match=words):
            await made.dial()


async def blocked_then_gone(gateway: TcpGateway) -> None:
    async with fallback(gateway.port, "quic", timeout=0.6) as made:
        with pytest.raises(UdpBlocked, match=r"is not answered, and TCP there is: .*transport=auto"):
            await made.dial()
        assert gateway.protocols == []
        await gateway.vanish()
        with pytest.raises(GatewayUnreachable) as caught:
            await made.dial()
        assert not isinstance(caught.value, UdpBlocked)


async def test_quic_alone_says_that_udp_is_blocked() -> None:
    async with both_ways() as gateway:
        await blocked_then_gone(gateway.tcp)


async def test_quic_alone_says_so_where_it_is_refused() -> None:
    async with TcpGateway() as gateway:
        await blocked_then_gone(gateway)


async def test_quic_alone_takes_a_gateway_that_answers_nobody_for_none() -> None:
    """One that is starting, or whose loop stands still: for its ports the kernel accepts."""
    async with both_ways(answers=False) as gateway, fallback(gateway.port, "quic", timeout=0.3) as made:
        with pytest.raises(GatewayUnreachable) as caught:
            await made.dial()
        assert not isinstance(caught.value, UdpBlocked)
        await until(lambda: gateway.tcp.open == 0)


async def test_tcp_alone() -> None:
    async with both_ways(silent=False) as gateway, fallback(gateway.port, "tcp") as made:
        connection = await made.dial()
        assert isinstance(connection, TcpCarrier)
        await works(connection)
        await ended(connection)
        assert gateway.quic.drivers == []
        assert made.stats().fallbacks == 0


async def test_a_dial_beyond_the_cap_asks_nobody() -> None:
    async with both_ways() as gateway, fallback(gateway.port, "tcp", most=1) as made:
        first = await made.dial()
        transport, _ = first.open_stream(Recorder, on_closed=lambda _: None)
        second = await made.dial()
        assert second.stream_credit == 0
        assert len(gateway.tcp.connections) == 1
        transport.close()
        await until(lambda: second.stream_credit == 1)
        for each in (first, second):
            await ended(each)


@pytest.mark.parametrize("transport", ["auto", "quic", "tcp"])
@pytest.mark.parametrize("moment", [0.0, 0.05, 0.12, 0.16])
async def test_a_cancelled_dial_leaves_nothing(transport: Transport, moment: float) -> None:
    async with both_ways(answers=False) as gateway, fallback(gateway.port, transport) as made:
        task = asyncio.ensure_future(made.dial())
        await asyncio.sleep(moment)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await ended(await task)
        await until(lambda: gateway.tcp.open == 0)


class Slow:
    """A dialer whose connection takes its time, and is heard meanwhile or not."""

    def __init__(self, *, heard: bool) -> None:
        self.is_heard = heard
        self.is_early = False

    async def dial(self, at: object = None, *, deadline: float, begun: list[Any]) -> Slow:
        begun.append(self)
        await asyncio.sleep(0.3)
        return self

    def discard(self) -> None:
        """Nothing is left of it."""


class Early:
    """A dialer whose connections are early, and that keeps them."""

    def __init__(self) -> None:
        self.connections: list[Any] = []

    async def dial(self, at: object = None, *, deadline: float, begun: list[Any]) -> Any:
        begun.append(SimpleNamespace(is_heard=False, is_early=True, is_alive=True, on_open=None, on_lost=None))
        begun[-1].discard = lambda: None
        self.connections.append(begun[-1])
        return begun[-1]


async def test_what_a_ticket_promises_is_no_answer_to_a_look() -> None:
    async with both_ways() as gateway, fallback(gateway.port, timeout=0.6) as made:
        carrier = await made.dial()
        assert isinstance(carrier, TcpCarrier)
        made.quic = early = Early()  # type: ignore[assignment]
        await until(lambda: len(early.connections) == 1)
        await asyncio.sleep(0.05)
        assert (carrier.leave, made.blockage.is_there) == (None, True)
        early.connections[0].on_lost(GatewayUnreachable("nobody has answered"))
        await until(lambda: len(early.connections) == 2)
        early.connections[1].on_open()
        await until(lambda: carrier.leave is not None)
        await ended(carrier)
    assert not made.blockage.is_there


@pytest.mark.parametrize("heard", [True, False])
async def test_a_gateway_that_is_heard_is_waited_for(heard: bool) -> None:
    """One that has much to do is not to get another handshake from each client."""
    async with TcpGateway() as gateway, fallback(gateway.port) as made:
        made.quic = Slow(heard=heard)  # type: ignore[assignment]
        connection = await made.dial()
        assert isinstance(connection, Slow if heard else TcpCarrier)
        assert len(gateway.connections) == (0 if heard else 1)
        if not heard:
            await until(lambda: made.stats().returns == 1)
            await ended(connection)
