"""What strangers cannot do to a listener: forged floods, garbage, handshakes that never end."""

from __future__ import annotations

import asyncio
import os
import socket
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.connection import QuicConnection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.listening import CA, EchoServer, echo_server, server_config
from helpers.stock_client import configuration, stock_client
from pgtrunk.quic.config import ByteBudget, QuicLimits
from pgtrunk_gateway.quic.udp import Path as NetworkPath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgtrunk_gateway.quic.server import ServerConfig


QUICK = QuicLimits(handshake_timeout=0.3, socket_buffer=1 << 16)


def first_packet() -> bytes:
    quic = QuicConnection(configuration=configuration())
    quic.connect(("127.0.0.1", 1), now=0.0)
    ((datagram, _),) = quic.datagrams_to_send(now=0.0)
    return datagram


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return server_config(tmp_path)


class Stranger:
    """A socket that sends what it likes and counts what comes back."""

    def __init__(self, address: tuple[Any, ...]) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.connect(address)
        self.sent = 0

    def says(self, data: bytes) -> None:
        self.sent += len(data)
        self.sock.send(data)

    async def hears(self) -> bytes:
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(self.sock, 65535)

    def heard(self) -> list[bytes]:
        """Returns what has come so far."""
        found = []
        while True:
            try:
                found.append(self.sock.recv(65535))
            except BlockingIOError:
                return found


@pytest.fixture
def strangers() -> Iterator[list[Stranger]]:
    made: list[Stranger] = []
    yield made
    for stranger in made:
        stranger.sock.close()


async def digested(server: EchoServer, datagrams: int) -> None:
    """Waits until the listener has read so many datagrams."""
    async with asyncio.timeout(30):
        while server.listener.udp.received < datagrams:  # noqa: ASYNC110  # counters have no event
            await asyncio.sleep(0.005)


async def burst(server: EchoServer, strangers: list[Stranger], datagrams: list[bytes]) -> None:
    """Sends as much as fits the listener's socket buffer, from all strangers in turn, and waits until it is read."""
    before = server.listener.udp.received
    for n, datagram in enumerate(datagrams):
        strangers[(before + n) % len(strangers)].says(datagram)
    await digested(server, before + len(datagrams))


# Handshakes that never end


async def test_a_client_that_never_finishes_is_dropped(tmp_path: Path, strangers: list[Stranger]) -> None:
    config = server_config(tmp_path, limits=QUICK)
    async with echo_server(config) as server:
        strangers += [Stranger(server.address) for _ in range(20)]
        for stranger in strangers:
            stranger.says(first_packet())
        await digested(server, 20)
        assert server.listener.half_open == 20
        await server.until(half_open=0, connection_ids=0)
        assert config.budget.committed == 0


async def test_what_only_looks_like_a_beginning_is_not_kept(config: ServerConfig, strangers: list[Stranger]) -> None:
    async with echo_server(config) as server:
        strangers.append(Stranger(server.address))
        # The keys of a first packet come from its destination id: with another one it cannot be decrypted.
        packet = first_packet()
        await burst(server, strangers, [packet[:6] + n.to_bytes(8, "big") + packet[14:] for n in range(30)])
        assert server.listener.counters.opened == 30
        assert (server.listener.half_open, server.listener.connection_ids) == (0, 0)


async def test_at_most_three_times_what_came_is_sent(tmp_path: Path, strangers: list[Stranger]) -> None:
    big = CA.issue("gateway", names=[f"name-{n:04d}.example" for n in range(200)])  # some 4 kB
    limits = QuicLimits(handshake_timeout=1.5, socket_buffer=1 << 16)
    async with echo_server(server_config(tmp_path, big, limits=limits)) as server:
        stranger = Stranger(server.address)
        strangers.append(stranger)
        stranger.says(first_packet())
        await digested(server, 1)
        await server.until(half_open=0, connection_ids=0)  # probes and the last word included
        answers = sum(map(len, stranger.heard()))
        assert 2 * stranger.sent < answers <= 3 * stranger.sent


async def test_a_large_certificate_gets_through_all_the_same(tmp_path: Path) -> None:
    big = CA.issue("gateway", names=[f"name-{n:04d}.example" for n in range(200)])
    async with echo_server(server_config(tmp_path, big)) as server, stock_client(server.address) as client:
        assert await client.echo() == b"hello"


# Floods


async def test_a_flood_of_forged_beginnings_leaves_the_door_open(tmp_path: Path, strangers: list[Stranger]) -> None:
    config = server_config(tmp_path, max_half_open=64)
    async with echo_server(config) as server:
        strangers += [Stranger(server.address) for _ in range(40)]
        packets = [first_packet() for _ in range(200)]
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for n in range(0, 3000, 20):
            await burst(server, strangers, packets[n % 200 : n % 200 + 20])
        during, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert server.listener.half_open <= 16, "a quarter is for who has not shown its address"
        assert server.listener.counters.retries > 1000
        assert during - before < 16 << 20
        async with stock_client(server.address) as client:
            assert client.quic._retry_count == 1
            assert await client.echo() == b"hello"


async def test_without_retry_a_flood_meets_the_limit(tmp_path: Path, strangers: list[Stranger]) -> None:
    config = server_config(tmp_path, retry="never", max_half_open=10)
    async with echo_server(config) as server:
        strangers += [Stranger(server.address) for _ in range(30)]
        for stranger in strangers:
            stranger.says(first_packet())
        await digested(server, 30)
        assert server.listener.half_open == 10
        assert server.listener.counters.over_limit == 20


async def test_connections_that_are_open_are_not_half_open(tmp_path: Path) -> None:
    config = server_config(tmp_path, retry="never", max_half_open=1)
    async with echo_server(config) as server, stock_client(server.address), stock_client(server.address):
        assert (server.listener.connections, server.listener.half_open) == (2, 0)


async def test_a_full_budget_refuses_new_connections(tmp_path: Path) -> None:
    config = server_config(tmp_path, budget=ByteBudget(600 << 10, reserve=256 << 10))
    async with echo_server(config) as server, stock_client(server.address), stock_client(server.address):
        async with stock_client(server.address, start=False) as third:
            assert third._transport is not None
            third.connect(third._transport.get_extra_info("peername"))
            assert (await third.end()).error_code == 2, "CONNECTION_REFUSED"
        assert server.listener.connections == 2


# Retry and version negotiation


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "*"])
async def test_retry_always_lets_everybody_in_who_proves_its_address(tmp_path: Path, host: str) -> None:
    async with echo_server(server_config(tmp_path, retry="always"), host) as server:
        target = "127.0.0.2" if host == "*" else host
        async with stock_client((target, server.port)) as client:
            assert client.quic._retry_count == 1
            assert await client.echo() == b"hello"
        assert server.listener.counters.retries == 1


async def test_another_version_is_negotiated(config: ServerConfig) -> None:
    async with echo_server(config) as server:
        async with stock_client(server.address, versions=(0x6B3343CF, 1)) as client:
            assert client.quic._version_negotiated_incompatible
            assert await client.echo() == b"hello"
        assert server.listener.counters.negotiated == 1


# Garbage


@pytest.mark.parametrize("host", ["127.0.0.1", "*"])
async def test_garbage_on_the_port_does_not_disturb_a_connection(
    config: ServerConfig, strangers: list[Stranger], host: str
) -> None:
    async with echo_server(config, host) as server, stock_client(("127.0.0.1", server.port)) as client:
        stranger = Stranger(("127.0.0.1", server.port))
        strangers.append(stranger)
        for _ in range(15):
            await burst(server, [stranger], [os.urandom(size * 70 % 1500) for size in range(20)])
        assert await client.echo() == b"hello"
        assert server.listener.counters.faults == 0


async def test_strangers_cannot_fill_the_log(
    tmp_path: Path, strangers: list[Stranger], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with echo_server(server_config(tmp_path, alpn=("another",), limits=QUICK)) as server:
        strangers.append(Stranger(server.address))
        for _ in range(3):
            await burst(server, strangers, [first_packet() for _ in range(15)])
        await server.until(half_open=0, connection_ids=0)
    lines = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert 1 <= len(lines) <= 20, "some, so that a mistake of one's own is seen; not one for each"
    assert all("no_application_protocol" in line for line in lines)
    assert all(line.startswith("no connection with 127.0.0.1:") for line in lines)
    assert {record.name for record in caplog.records if record.levelname != "DEBUG"} == {
        "pgtrunk_gateway.quic.listener"
    }


class Recorder:
    """A real conversation's datagrams, for others to spoil."""

    def __init__(self) -> None:
        self.datagrams: list[bytes] = []

    def attach(self, server: EchoServer) -> None:
        real = server.listener._demux.datagram_received

        def spy(data: bytes, path: Any) -> None:
            self.datagrams.append(data)
            real(data, path)

        server.listener._endpoints[0]._receive = spy  # type: ignore[attr-defined]


async def test_spoiled_packets_never_raise(tmp_path: Path) -> None:
    recorder = Recorder()
    config = server_config(tmp_path, retry="never", max_half_open=8, limits=QuicLimits(socket_buffer=1 << 16))
    async with echo_server(config) as server, stock_client(server.address) as client:
        recorder.attach(server)
        async with stock_client(server.address) as other:
            await other.echo(b"x" * 3000)
        await client.echo()
        datagrams = list(recorder.datagrams)
        path = NetworkPath(("127.0.0.1", 9), server.listener._endpoints[0])
        spoil(server, datagrams, path)
        assert server.listener.counters.faults == 0
        assert await client.echo() == b"hello"


def spoil(server: EchoServer, datagrams: list[bytes], path: NetworkPath) -> None:
    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        packet = bytearray(data.draw(st.sampled_from(datagrams)))
        for _ in range(data.draw(st.integers(0, 5))):
            packet[data.draw(st.integers(0, min(len(packet) - 1, 60)))] ^= 1 << data.draw(st.integers(0, 7))
        cut = data.draw(st.one_of(st.just(len(packet)), st.integers(0, len(packet))))
        server.listener._demux.datagram_received(bytes(packet[:cut]), path)

    run()


async def test_a_connection_that_fails_ends_alone(config: ServerConfig) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    async with echo_server(config) as server, stock_client(server.address) as other:
        async with stock_client(server.address) as client:
            (broken,) = (driver for driver in server.drivers if driver.peername == peer_of(client))
            broken.quic.receive_datagram = fail
            client.write(b"anything")
            await server.until(connections=1)
        assert await other.echo() == b"hello"
        assert server.listener.counters.faults == 1
        assert "failed on a datagram" in reported[0]["message"]
        assert isinstance(reported[0]["exception"], ZeroDivisionError)


def fail(*_: object) -> None:
    raise ZeroDivisionError("a mistake of ours")


def peer_of(client: Any) -> Any:
    return client._transport.get_extra_info("sockname")
