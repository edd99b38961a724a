"""A listener's connections from beginning to end: ids, migration, drain, close."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.packet import QuicErrorCode

from helpers.listening import Echo, echo_server, server_config
from helpers.stock_client import stock_client
from pgtrunk.quic.config import QuicLimits
from pgtrunk_gateway.quic.connection_id import generation_of
from pgtrunk_gateway.quic.server import listen
from pgtrunk_gateway.quic.udp import Path as NetworkPath
from pgtrunk_gateway.quic.udp import UdpCounters

if TYPE_CHECKING:
    from pathlib import Path

    from pgtrunk_gateway.quic.server import ServerConfig


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return server_config(tmp_path)


# Connection ids


async def test_ids_are_tracked_and_forgotten(config: ServerConfig) -> None:
    async with echo_server(config) as server:
        async with stock_client(server.address) as client:
            await client.echo()
            (driver,) = server.drivers
            # The client's own first choice, and all that we have issued.
            assert server.listener.connection_ids == 1 + len(driver.cids)
            assert all(len(cid) == 8 and generation_of(cid) == 0 for cid in driver.cids)
            for _ in range(30):
                client.change_connection_id()
                await client.echo()
            assert server.listener.connection_ids == 1 + len(driver.cids)
        await server.until(connection_ids=0, connections=0)


async def test_many_connections_leave_nothing(config: ServerConfig) -> None:
    async with echo_server(config) as server:
        for _ in range(20):
            async with stock_client(server.address) as client:
                await client.echo()
        await server.until(connection_ids=0, connections=0)
        assert not server.listener._accepted
        assert not server.listener._demux._ids
        assert config.budget.committed == 0


async def test_a_silent_client_is_forgotten(tmp_path: Path) -> None:
    config = server_config(tmp_path, limits=QuicLimits(idle_timeout=0.5, socket_buffer=1 << 16))
    async with echo_server(config) as server, stock_client(server.address) as client:
        await client.echo()
        assert client._transport is not None
        client._transport.abort()
        await server.until(connection_ids=0, connections=0)


# Addresses that change


@pytest.mark.parametrize("host", ["127.0.0.1", "*"])
@pytest.mark.parametrize("with_new_id", [False, True], ids=["rebinding", "migration"])
async def test_a_client_may_move(config: ServerConfig, host: str, with_new_id: bool) -> None:
    async with echo_server(config, host) as server, stock_client(("127.0.0.1", server.port)) as client:
        stream = client.write(b"one")
        assert await client.hear(stream, 3) == b"one"
        for _ in range(2):
            await client.move("127.0.0.1")
            if with_new_id:
                client.change_connection_id()
            client.quic.send_stream_data(stream, b"two")
            client.transmit()
            await client.echo(b"x" * 20000)
            assert server.accepted[0].get_extra_info("peername") == client._transport.get_extra_info("sockname")  # type: ignore[union-attr]
        assert await client.hear(stream, 9) == b"onetwotwo"
        assert server.listener.connections == 1


async def test_a_client_that_turns_to_another_of_our_addresses_is_answered_from_there(config: ServerConfig) -> None:
    async with echo_server(config, "*") as server, stock_client(("127.0.0.1", server.port)) as client:
        await client.echo()
        client.quic._network_paths[0].addr = ("127.0.0.7", server.port)
        await client.move("127.0.0.1")
        assert await client.echo(b"x" * 20000) == b"x" * 20000
        (driver,) = server.drivers
        assert driver.peername.sockname == ("127.0.0.7", server.port)


# The end


async def test_a_draining_listener_refuses_the_new_and_serves_the_old(config: ServerConfig) -> None:
    async with echo_server(config) as server, stock_client(server.address) as old:
        server.listener.stop_accepting()
        async with stock_client(server.address, start=False) as new:
            assert new._transport is not None
            new.connect(new._transport.get_extra_info("peername"))
            assert (await new.end()).error_code == QuicErrorCode.CONNECTION_REFUSED
        assert await old.echo() == b"hello"
        assert server.listener.connections == 1


async def test_close_says_goodbye_and_frees_the_port(config: ServerConfig) -> None:
    async with echo_server(config, "*") as server, stock_client(("127.0.0.1", server.port)) as client:
        await client.echo()
        lost = [asyncio.get_running_loop().create_future() for _ in server.accepted]
        for transport, future in zip(server.accepted, lost, strict=True):
            transport.get_protocol().connection_lost = future.set_result  # type: ignore[method-assign, assignment]
        server.listener.close()
        server.listener.close()
        end = await client.end()
        assert (end.error_code, end.reason_phrase) == (QuicErrorCode.NO_ERROR, "the gateway is shutting down")
        await server.listener.wait_closed()
        assert all(future.done() for future in lost)
        again = await listen("*", server.port, config=config, accept=Echo)
        again.close()
        await again.wait_closed()


async def test_close_without_connections_is_immediate(config: ServerConfig) -> None:
    listener = await listen("127.0.0.1", 0, config=config, accept=Echo)
    listener.close()
    assert listener._closed.is_set()
    await listener.wait_closed()


async def test_close_does_not_wait_for_a_client_that_is_gone(config: ServerConfig) -> None:
    async with echo_server(config) as server, stock_client(server.address) as client:
        await client.echo()
        assert client._transport is not None
        client._transport.abort()
        await asyncio.sleep(0)
        server.listener.close()
        async with asyncio.timeout(5):
            await server.listener.wait_closed()


async def test_a_stream_that_says_nothing_is_accepted_too(config: ServerConfig) -> None:
    async with echo_server(config) as server, stock_client(server.address) as client:
        client.quic.get_next_available_stream_id()
        client.quic.send_stream_data(12, b"the fourth")
        client.transmit()
        assert await client.hear(12, 10) == b"the fourth"
        assert [transport.get_extra_info("stream_id") for transport in server.accepted] == [0, 4, 8, 12]
        assert server.listener.streams == 4


async def test_the_listener_shows_itself(config: ServerConfig) -> None:
    async with echo_server(config) as server, stock_client(server.address) as client:
        await client.echo()
        assert repr(server.listener) == (
            f"<Listener 127.0.0.1 port {server.port} [1 connections, 0 half open, 1 streams]>"
        )
        assert server.listener.held_bytes == 0
        assert server.listener.udp.received > 3


# Sockets that do not take what we send


class Deaf:
    """A socket whose buffer is always full."""

    def __init__(self, sock: socket.socket, error: OSError) -> None:
        self._sock = sock
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendto(self, *_: object) -> None:
        raise self._error

    sendmsg = sendto


@pytest.mark.parametrize("host", ["127.0.0.1", "*"])
@pytest.mark.parametrize("error", [BlockingIOError(11, "full"), OSError(101, "no route"), OSError(90, "too long")])
async def test_what_cannot_be_sent_is_lost_and_counted(config: ServerConfig, host: str, error: OSError) -> None:
    async with echo_server(config, host) as server, stock_client(("127.0.0.1", server.port)) as client:
        await client.echo()
        endpoint: Any = server.listener._endpoints[0]
        endpoint._sock = Deaf(endpoint._sock, error)
        stream = client.write(b"heard late")
        async with asyncio.timeout(10):
            while server.listener.udp.send_dropped == 0:  # noqa: ASYNC110  # counters have no event
                await asyncio.sleep(0.005)
        endpoint._sock = endpoint._sock._sock
        assert await client.hear(stream, 10) == b"heard late"


def test_a_path_is_an_address_and_more() -> None:
    one: Any = object()
    two: Any = object()
    path = NetworkPath(("192.0.2.1", 5000), one, b"here")
    assert path == ("192.0.2.1", 5000)
    assert hash(path) == hash(("192.0.2.1", 5000))
    assert path == NetworkPath(("192.0.2.1", 5000), one, b"here")
    assert path != NetworkPath(("192.0.2.1", 5000), one, b"there")
    assert path != NetworkPath(("192.0.2.1", 5000), two, b"here")
    assert path != NetworkPath(("192.0.2.1", 5001), one, b"here")
    assert path != "192.0.2.1"
    assert UdpCounters() == UdpCounters(0, 0, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "*"])
async def test_an_endpoint_keeps_some_paths_at_hand_and_not_any_number(
    config: ServerConfig, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtrunk_gateway.quic.udp.MAX_PATHS", 3)
    async with echo_server(config, host) as server:
        endpoint: Any = server.listener._endpoints[0]
        for _ in range(8):
            async with stock_client(("127.0.0.1", server.port)) as client:
                assert await client.echo() == b"hello"
                known = set(map(id, endpoint._paths.values()))
                assert await client.echo() == b"hello"
                assert set(map(id, endpoint._paths.values())) == known, "found again, not made again"
            assert len(endpoint._paths) <= 3


async def test_a_connection_that_cannot_be_closed_keeps_no_socket_open(
    config: ServerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    class FaultError(Exception):
        """Of ours."""

    def fail(*_: object, **__: object) -> None:
        raise FaultError

    async with echo_server(config) as server, stock_client(server.address) as one, stock_client(server.address) as two:
        await one.echo()
        await two.echo()
        first, second = server.drivers
        monkeypatch.setattr(first, "close", fail)
        server.listener.close()
        assert second.is_lost
        assert not first.is_lost
    assert [type(error) for error in told] == [FaultError]
