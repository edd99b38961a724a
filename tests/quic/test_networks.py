"""A client whose network changes, with real interfaces: two links to one gateway, in network namespaces. For root."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from helpers.certificates import SERVER_AUTH
from helpers.namespaces import GATEWAY, Links, links
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Recorder, identities
from pgtrunk.quic import ClientConnection, connect

SIZE = 3_000_000


@pytest.fixture
def two_links() -> Iterator[Links]:
    with links() as made:
        yield made
    gc.collect()


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is the state of two ends, which set no event
            await asyncio.sleep(0.001)


def named(configuration: Any) -> None:
    server = identities()[0].issue("gateway", usage=(SERVER_AUTH,), names=(GATEWAY,))
    configuration.certificate, configuration.private_key = server.certificate, server.key


@contextlib.asynccontextmanager
async def session(made: Links) -> AsyncIterator[tuple[ClientConnection, LoopbackServer, Any, Recorder]]:
    """A stream by link 1. From here on new sockets are the client's."""
    server = LoopbackServer(host=GATEWAY, configure=named)
    async with contextlib.AsyncExitStack() as stack:
        with made.at_gateway():
            await stack.enter_async_context(server)
        stack.enter_context(made.at_client())
        connection = await connect(GATEWAY, server.port, config=server.client(), timeout=10)
        try:
            transport, protocol = connection.open_stream(Recorder)
            assert transport.get_extra_info("sockname")[0] == "10.99.1.2"
            yield connection, server, transport, protocol
        finally:
            connection.close()
            await connection.wait_closed()


@pytest.mark.parametrize("change", ["unplug", "mute"])
async def test_a_transfer_goes_on_by_the_other_link(two_links: Links, change: str) -> None:
    async with session(two_links) as (connection, server, transport, protocol):
        sent = bytes(range(250)) * (SIZE // 250)
        transport.write(sent)
        await until(lambda: len(protocol.data) > SIZE // 4)
        getattr(two_links, change)(1)
        await until(lambda: len(protocol.data) == SIZE)
        assert bytes(protocol.data) == sent
        assert transport.get_extra_info("sockname")[0] == "10.99.2.2"
        peer: Any = server.driver.peername
        assert peer[0] == "10.99.2.2"
        assert connection.driver.quic.moves == server.driver.quic.moves == 1
        # And back.
        if change == "unplug":
            two_links.plug_in(1)
            two_links.unplug(2)
            transport.write(b"and back")
            await until(lambda: protocol.data.endswith(b"and back"))
            assert transport.get_extra_info("sockname")[0] == "10.99.1.2"


async def test_without_any_network_for_a_while(two_links: Links) -> None:
    async with session(two_links) as (connection, _, transport, protocol):
        transport.write(b"before")
        await until(lambda: protocol.data == b"before")
        two_links.unplug(1)
        two_links.unplug(2)
        transport.write(b", after")
        await asyncio.sleep(2.0)
        two_links.plug_in(2)
        await until(lambda: protocol.data == b"before, after", 6.0)
        assert connection.driver.quic.moves == 1


@pytest.mark.parametrize("told", [True, False], ids=["the kernel knows", "nobody tells"])
async def test_links_with_an_mtu_of_1280(two_links: Links, told: bool) -> None:
    two_links.mtu(1, 1280, told=told)
    async with session(two_links) as (connection, server, transport, protocol):
        sent = bytes(range(250)) * (SIZE // 250)
        transport.write(sent)
        await until(lambda: len(protocol.data) == SIZE)
        assert bytes(protocol.data) == sent
        await until(lambda: connection.driver.quic.search.size == server.driver.quic.search.size == 1252)
