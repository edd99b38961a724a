"""Listeners that share a port: whatever a client does, its packets find the one that has its connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.connection import QuicConnection

from helpers.listening import CA, PATIENCE, server_config
from helpers.listening_fleet import EchoFleet, echo_fleet
from helpers.stock_client import configuration, stock_client
from helpers.waiting import until
from pgtrunk.errors import SessionLost
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.connecting import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pgtrunk.quic.client import ClientConnection
    from pgtrunk_gateway.quic.server import ServerConfig

KNOWS = 3.0
"""Seconds in which a client must know that its worker is gone."""

both_ways = pytest.mark.parametrize("steered", [True, False], ids=["by the kernel", "by each other"])


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return server_config(tmp_path)


class Waiting(asyncio.Protocol):
    """A session that says nothing, unless it is told to."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.news = asyncio.Event()
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    async def echo(self, data: bytes) -> None:
        self.heard.clear()
        self.transport.write(data)
        async with asyncio.timeout(PATIENCE):
            while bytes(self.heard) != data:
                self.news.clear()
                await self.news.wait()


class Session:
    """A connection of our client's, with one session that has been answered."""

    def __init__(self, connection: ClientConnection, waiting: Waiting) -> None:
        self.connection = connection
        self.waiting = waiting
        self.quic = connection.driver.quic


@contextlib.asynccontextmanager
async def session(fleet: EchoFleet) -> AsyncIterator[Session]:
    connection = await connect("127.0.0.1", fleet.port, config=ClientConfig(ca_data=CA.pem), timeout=PATIENCE)
    try:
        _, waiting = connection.open_stream(Waiting)
        await waiting.echo(b"hello")
        yield Session(connection, waiting)
    finally:
        connection.close()
        async with asyncio.timeout(PATIENCE):
            await connection.wait_closed()


@contextlib.asynccontextmanager
async def one_on_each(fleet: EchoFleet) -> AsyncIterator[list[Session]]:
    """Sessions, by the number of their worker."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[int, Session] = {}
        while len(found) < fleet.count:
            async with contextlib.AsyncExitStack() as attempt:
                made = await attempt.enter_async_context(session(fleet))
                if fleet.owner(made) not in found:
                    found[fleet.owner(made)] = made
                    stack.push_async_exit(attempt.pop_all())
        yield [found[index] for index in range(fleet.count)]


def first_packet(fleet: EchoFleet, owner: int | None = None) -> bytes:
    """Of a client whose first id leads to ``owner``, or to anybody."""
    while True:
        quic = QuicConnection(configuration=configuration())
        if owner is None or fleet.owner_of(quic.original_destination_connection_id) == owner:
            quic.connect(("127.0.0.1", fleet.port), now=0.0)
            return quic.datagrams_to_send(now=0.0)[0][0]


# Where connections go


@both_ways
async def test_all_connections_land(config: ServerConfig, steered: bool) -> None:
    async with echo_fleet(config, steered=steered) as fleet, contextlib.AsyncExitStack() as stack:
        for number in range(24):
            client = await stack.enter_async_context(stock_client(("127.0.0.1", fleet.port)))
            assert await client.echo() == b"hello"
            assert fleet.accepted[-1][0] == fleet.owner(client), number
        assert sum(fleet.spread()) == 24
        assert len([count for count in fleet.spread() if count]) > 1
        # By a hash three of four would land wrong.
        assert bool(fleet.passed_on) is not steered


@both_ways
@pytest.mark.parametrize("host", ["127.0.0.1", "*"])
@pytest.mark.parametrize("with_new_id", [False, True], ids=["rebinding", "migration"])
async def test_a_client_may_move(config: ServerConfig, host: str, steered: bool, with_new_id: bool) -> None:
    target = "127.0.0.2" if host == "*" else host
    async with echo_fleet(config, host=host, steered=steered) as fleet:
        for _ in range(4):
            async with stock_client((target, fleet.port)) as client:
                stream = client.write(b"one")
                assert await client.hear(stream, 3) == b"one"
                owner = fleet.owner(client)
                for _ in range(3):
                    await client.move("127.0.0.1")
                    if with_new_id:
                        client.change_connection_id()
                    client.quic.send_stream_data(stream, b"two")
                    client.transmit()
                    await client.echo(b"x" * 20000)
                    index, transport = fleet.accepted[-1]
                    assert index == owner == fleet.owner(client)
                    assert client._transport is not None
                    assert transport.get_extra_info("peername") == client._transport.get_extra_info("sockname")
                    assert transport.get_extra_info("sockname") == (target, fleet.port)
                assert await client.hear(stream, 12) == b"onetwotwotwo"


@both_ways
async def test_ipv6_goes_the_same_ways(config: ServerConfig, steered: bool) -> None:
    async with echo_fleet(config, host="*", steered=steered) as fleet:
        for _ in range(6):
            async with stock_client(("::1", fleet.port)) as client:
                await client.echo()
                await client.move("::1")
                assert await client.echo(b"x" * 20000) == b"x" * 20000
                assert fleet.accepted[-1][0] == fleet.owner(client)


@both_ways
async def test_who_proves_its_address_comes_back_to_the_same_worker(tmp_path: Path, steered: bool) -> None:
    async with echo_fleet(server_config(tmp_path, retry="always"), steered=steered) as fleet:
        for _ in range(12):
            async with stock_client(("127.0.0.1", fleet.port)) as client:
                assert await client.echo() == b"hello"
        counters = [listener.counters for listener in fleet.living.values()]
        assert sum(each.retries for each in counters) == 12
        assert sum(each.opened for each in counters) == 12
        assert all(each.retries == each.opened for each in counters)


@both_ways
async def test_any_worker_resumes_what_another_began(config: ServerConfig, steered: bool) -> None:
    async with echo_fleet(config, steered=steered) as fleet:
        async with stock_client(("127.0.0.1", fleet.port)) as client:
            ticket = await client.ticket()
            first = fleet.owner(client)
        resumed_at: set[int] = set()
        while not resumed_at - {first}:
            async with stock_client(("127.0.0.1", fleet.port), ticket=ticket) as client:
                assert await client.echo() == b"hello"
                assert client.handshake is not None
                assert client.handshake.session_resumed
                resumed_at.add(fleet.owner(client))


@both_ways
async def test_copies_of_a_first_packet_begin_nothing_wherever_they_come_from(
    config: ServerConfig, steered: bool
) -> None:
    async with echo_fleet(config, steered=steered) as fleet:
        for _ in range(6):
            first = first_packet(fleet)
            before = sum(listener.counters.opened for listener in fleet.living.values())
            for _ in range(5):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    sender.sendto(first, ("127.0.0.1", fleet.port))
            await until(lambda: sum(each.counters.opened for each in fleet.living.values()) > before)  # noqa: B023
            await asyncio.sleep(0.05)
            assert sum(listener.counters.opened for listener in fleet.living.values()) == before + 1


async def test_what_was_passed_on_is_not_passed_on_again(config: ServerConfig) -> None:
    async with echo_fleet(config, 2) as fleet, stock_client(("127.0.0.1", fleet.port)) as client:
        await client.echo()
        wrong = fleet.living[1 - fleet.owner(client)]
        fleet.passed_on.clear()
        unknown = wrong.counters.unknown
        packet = b"\x41" + client.quic._peer_cid.cid + bytes(30)
        path = fleet.living[fleet.owner(client)]._endpoints[0].path(("127.0.0.1", 9), b"")
        wrong._pass_on(packet[1:9], packet, path)
        assert sum(fleet.passed_on.values()) == 1
        [frame] = fleet._queues[fleet.owner(client)]
        fleet._queues[fleet.owner(client)].clear()
        wrong.take(frame)
        assert wrong.counters.unknown == unknown + 1
        assert sum(fleet.passed_on.values()) == 1


@pytest.mark.parametrize("frame", [b"", b"\x02" * 40, b"\x01\x04\x09\x00" + bytes(20)])
async def test_frames_that_make_no_sense_are_counted(config: ServerConfig, frame: bytes) -> None:
    async with echo_fleet(config, 2) as fleet:
        fleet.living[0].take(frame)
        assert fleet.living[0].counters.malformed == 1


async def test_each_worker_holds_an_address_to_its_limit(tmp_path: Path) -> None:
    """A client picks its worker, so what another one counts must not make room here."""
    config = server_config(tmp_path, max_half_open_per_address=2, retry="never")
    async with echo_fleet(config, 2) as fleet:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(10):
                sender.sendto(first_packet(fleet, 0), ("127.0.0.1", fleet.port))
            await until(lambda: fleet.living[0].udp.received == 10)
            assert [fleet.living[index].half_open for index in (0, 1)] == [2, 0]
            sender.sendto(first_packet(fleet, 1), ("127.0.0.1", fleet.port))
            await until(lambda: fleet.living[1].half_open == 1)


# Who dies


@pytest.mark.parametrize("busy", [True, False], ids=["in the middle of a query", "idle"])
async def test_clients_of_a_worker_that_died_know_it_and_others_notice_nothing(
    config: ServerConfig, busy: bool
) -> None:
    async with echo_fleet(config) as fleet, one_on_each(fleet) as sessions:
        # Until nothing is under way any more that would be answered.
        await asyncio.sleep(0.2)
        fleet.kill(2)
        begun = time.monotonic()
        if busy:
            sessions[2].waiting.transport.write(b"is anybody there?")
        await fleet.start(2)
        async with asyncio.timeout(KNOWS - (time.monotonic() - begun)):
            error = await sessions[2].waiting.lost
        assert isinstance(error, SessionLost)
        assert "stateless reset" in str(error)
        assert not sessions[2].connection.is_alive
        for index in (0, 1, 3):
            await sessions[index].waiting.echo(b"still there")
        async with session(fleet):
            pass


@both_ways
async def test_a_caretaker_tells_clients_and_sends_new_ones_to_others(config: ServerConfig, steered: bool) -> None:
    async with echo_fleet(config, steered=steered) as fleet, one_on_each(fleet) as sessions:
        fleet.kill(1)
        begun = time.monotonic()
        await fleet.care_for(1)
        async with asyncio.timeout(KNOWS - (time.monotonic() - begun)):
            error = await sessions[1].waiting.lost
        assert isinstance(error, SessionLost)
        for index in (0, 2, 3):
            # Without the kernel's help what they say comes to the caretaker too.
            for _ in range(3):
                await sessions[index].waiting.echo(b"still there")
        for _ in range(12):
            async with session(fleet) as made:
                assert fleet.owner(made) != 1
        assert fleet.caretakers[1].resets >= 1
        await fleet.start(1)
        reached: set[int] = set()
        while 1 not in reached:
            async with session(fleet) as made:
                reached.add(fleet.owner(made))


async def test_a_caretaker_leaves_alone_what_says_nothing(config: ServerConfig) -> None:
    async with echo_fleet(config, 2) as fleet:
        fleet.kill(0)
        await fleet.care_for(0)
        caretaker = fleet.caretakers[0]
        path = caretaker._endpoints[0].path(("127.0.0.1", 9), b"")
        for data in (b"", b"\x40", b"\xc0", b"\xc0\x00\x00\x00\x01\x08", b"\xc0\x00\x00\x00\x01\x00\x00".ljust(1200)):
            caretaker._received(data, path)
        caretaker.take(b"no frame")
        assert (caretaker.resets, caretaker.udp.sent, sum(fleet.passed_on.values())) == (0, 0, 0)


async def test_without_any_worker_first_packets_are_lost(config: ServerConfig) -> None:
    async with echo_fleet(config, 2) as fleet:
        for index in (0, 1):
            fleet.kill(index)
            await fleet.care_for(index)
        async with stock_client(("127.0.0.1", fleet.port), start=False) as client:
            assert client._transport is not None
            client.connect(client._transport.get_extra_info("peername"))
            await until(lambda: any(caretaker.udp.received for caretaker in fleet.caretakers.values()))
            assert not fleet.passed_on
            # The client goes on trying, and gets in as soon as there is somebody.
            for index in (0, 1):
                await fleet.start(index)
            async with asyncio.timeout(PATIENCE):
                await client.wait_connected()


async def test_a_client_in_its_handshake_is_told_as_well(tmp_path: Path) -> None:
    config = server_config(tmp_path, limits=QuicLimits(socket_buffer=1 << 16))
    async with echo_fleet(config, 1, steered=False) as fleet, stock_client(("127.0.0.1", fleet.port)) as client:
        await client.echo()
        handshake = b"\xe0\x00\x00\x00\x01\x08" + client.quic._peer_cid.cid + b"\x08" + bytes(80)
        fleet.kill(0)
        await fleet.start(0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE)
            sender.sendto(handshake, ("127.0.0.1", fleet.port))
            answer = await asyncio.to_thread(sender.recv, 2048)
        assert answer.endswith(client.quic._peer_cid.stateless_reset_token)
        assert len(answer) < len(handshake)
