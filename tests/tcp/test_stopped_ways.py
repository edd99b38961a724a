"""What is left of the two ways where a dial, or all of them, is stopped in the turn in which one is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from helpers.quic_pair import identities
from helpers.tcp_gateway import TcpGateway
from helpers.trunks import turns, until
from pgtrunk.address import Address
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.tcp.cap import Cap
from pgtrunk.tcp.dialer import Knocker, TcpDialer
from pgtrunk.tcp.fallback import Fallback

if TYPE_CHECKING:
    from pgtrunk.dialer import Dialer
    from pgtrunk.tcp.fallback import Transport


class Held:
    """A dialer whose connection comes when it is let; it is that connection, too."""

    is_heard = is_early = False

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.is_under_way = False
        self.discarded = 0

    async def dial(self, at: object = None, *, deadline: float, begun: list[Any]) -> Held:
        begun.append(self)
        self.is_under_way = True
        try:
            await self.let.wait()
        finally:
            self.is_under_way = False
        return self

    def discard(self) -> None:
        self.discarded += 1


class Stubborn:
    """A knocker that takes its time to go away."""

    def __init__(self) -> None:
        self.is_going = asyncio.Event()
        self.let = asyncio.Event()

    async def knock(self, at: object, deadline: float) -> bool:
        try:
            await asyncio.sleep(60)
        finally:
            self.is_going.set()
            await self.let.wait()
        return False


def fallback(transport: Transport, quic: Held, port: int) -> Fallback:
    config = ClientConfig(ca_data=identities()[0].pem)
    addresses = [Address("127.0.0.1", port)]
    tcp = TcpDialer(addresses, config, Cap(10), timeout=20)
    knocker = Knocker(addresses, config, timeout=20)
    return Fallback(transport, cast("Dialer", quic), tcp, knocker, timeout=20, head_start=0.01)


async def test_a_dial_that_is_cancelled_while_its_knock_is_ended() -> None:
    quic, knocker = Held(), Stubborn()
    made = fallback("quic", quic, 1)
    made._knocker = cast("Knocker", knocker)
    dialling = asyncio.create_task(made.dial())
    await until(lambda: quic.is_under_way)
    await asyncio.sleep(0.05)
    quic.let.set()
    async with asyncio.timeout(20):
        await knocker.is_going.wait()
    dialling.cancel()
    await turns()
    knocker.let.set()
    await asyncio.wait([dialling])
    assert dialling.cancelled()
    assert quic.discarded == 1
    await turns()


async def test_a_look_at_udp_that_is_stopped_before_its_first_step() -> None:
    quic = Held()
    async with TcpGateway() as gateway:
        made = fallback("auto", quic, gateway.port)
        carrier = await made.dial()
        made.stop()
        await made.wait_stopped()
        assert not quic.is_under_way
        carrier.close()
        await carrier.wait_closed()
