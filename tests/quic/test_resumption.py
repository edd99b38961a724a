"""Our client comes back to our listener, with a ticket and early data; and what others who have seen it make of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.certificates import authority
from helpers.listening import CA, PATIENCE, SERVER, EchoServer, echo_server, server_config
from helpers.listening_fleet import echo_fleet
from helpers.replaying import first_flight, recording_relay, replay
from helpers.tls_pair import Clock
from helpers.waiting import until
from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.connecting import connect
from pgtrunk.quic.resumption import gateway_name
from pgtrunk.quic.ticket_store import FileTickets, MemoryTickets
from pgtrunk_gateway.quic.identity import Identity
from pgtrunk_gateway.quic.sealing import Sealer
from pgtrunk_gateway.quic.ticket_keys import PURPOSE
from pgtrunk_gateway.quic.tickets import LIFETIME, MAX_RENEWAL, Tickets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pgtrunk.quic.client import ClientConnection
    from pgtrunk_gateway.quic.server import ServerConfig


class Asking(asyncio.Protocol):
    """A session that asks one thing."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.lost: list[BaseException | None] = []

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return server_config(tmp_path, early_data=True)


@pytest.fixture
def client() -> ClientConfig:
    return ClientConfig(ca_data=CA.pem, tickets=MemoryTickets(), early=True)


@contextlib.asynccontextmanager
async def connected(port: int, config: ClientConfig, timeout: float = PATIENCE) -> AsyncIterator[ClientConnection]:
    connection = await connect("127.0.0.1", port, config=config, timeout=timeout)
    try:
        yield connection
    finally:
        connection.close()
        async with asyncio.timeout(PATIENCE):
            await connection.wait_closed()


async def echo(connection: ClientConnection, data: bytes = b"hello") -> Asking:
    transport, asking = connection.open_stream(Asking)
    transport.write(data)
    await until(lambda: len(asking.heard) == len(data) or bool(asking.lost))
    assert bytes(asking.heard) == data
    transport.close()
    return asking


def tickets_of(config: ClientConfig) -> int:
    """How many tickets there are; of one in memory."""
    store = config.tickets
    assert store is not None
    return sum(map(len, store._kept.values()))


async def get_ticket(port: int, config: ClientConfig) -> None:
    """One connection, so that there is a ticket for the next one."""
    before = tickets_of(config)
    async with connected(port, config) as connection:
        assert not connection.is_early
        await echo(connection)
        await until(lambda: tickets_of(config) > before)


async def test_who_comes_back_speaks_at_once(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        opened: list[bool] = []
        async with connected(server.port, client) as connection:
            connection.on_open = lambda: opened.append(connection.is_early)
            assert connection.is_early
            assert connection.is_alive
            assert connection.stream_credit == config.limits.max_streams
            await echo(connection)
            await until(lambda: bool(opened))
            assert opened == [False]
            assert connection.driver.took_early
            await until(lambda: tickets_of(client) == 1)
        async with connected(server.port, client) as connection:
            await echo(connection)
            await until(lambda: connection.driver.is_confirmed)
            assert connection.driver.took_early, "the next ticket is as good"
        counters = server.listener.handshakes
        assert (counters.full, counters.resumed, counters.early, counters.late) == (1, 2, 2, 0)


async def test_one_that_is_open_before_anybody_looks_is_not_given_up(
    config: ServerConfig, client: ClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0.3))  # a turn of the loop that takes long
        async with connected(server.port, client) as connection:
            monkeypatch.undo()
            assert not connection.is_early
            assert connection.driver.took_early
            assert connection._give_up_at is None
            await echo(connection)


async def test_who_does_not_want_to_waits_but_resumes(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        async with connected(server.port, replace(client, early=False)) as connection:
            assert not connection.is_early
            assert connection.driver.was_resumed
            assert not connection.driver.took_early
            await echo(connection)


async def test_without_a_store_no_ticket_is_asked_for(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        for _ in range(2):
            async with connected(server.port, replace(client, tickets=None)) as connection:
                await echo(connection)
                assert not connection.driver.was_resumed
        assert server.listener.handshakes.full == 2


async def test_where_early_data_is_off_tickets_are_for_resumption_alone(
    config: ServerConfig, client: ClientConfig
) -> None:
    async with echo_server(replace(config, early_data=False)) as server:
        await get_ticket(server.port, client)
        async with connected(server.port, client) as connection:
            assert not connection.is_early
            assert connection.driver.was_resumed
            await echo(connection)


async def test_a_file_serves_the_next_process(config: ServerConfig, client: ClientConfig, tmp_path: Path) -> None:
    path = str(tmp_path / "tickets")
    async with echo_server(config) as server:
        first = replace(client, tickets=FileTickets(path))
        async with connected(server.port, first) as connection:
            await echo(connection)
            await until(lambda: (tmp_path / "tickets").exists())
        async with connected(server.port, replace(client, tickets=FileTickets(path))) as connection:
            assert connection.is_early
            await echo(connection)


async def test_a_connection_that_lives_long_gets_tickets_anew(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        listener = server.listener
        clock = Clock(time.time())
        listener.door = replace(listener.door, policy=replace(listener.door.policy, clock=clock))
        async with connected(server.port, client) as connection:
            await echo(connection)
            await until(lambda: tickets_of(client) == 1)
            listener._renewals.renew()
            clock.now += LIFETIME / 2 + 1
            # Its keys have been replaced, too.
            listener.reload_tickets(Tickets(Sealer([b"n" * 32], PURPOSE)), early=True)
            listener._renewals.renew()
            listener._renewals.renew()
            await until(lambda: tickets_of(client) == 2)
            await echo(connection)
            # And a day after the handshake it is over.
            clock.now += MAX_RENEWAL
            listener._renewals.renew()
            await echo(connection)
            assert tickets_of(client) == 2
            clock.now -= MAX_RENEWAL
        async with connected(server.port, client) as connection:
            await echo(connection)
            await until(lambda: connection.driver.is_confirmed)
            assert connection.driver.took_early
        assert (listener.handshakes.full, listener.handshakes.resumed) == (1, 1)


# Refused: a round trip more, and no error


async def refused(server: EchoServer, client: ClientConfig, *, resumed: bool) -> None:
    """A connection whose early data is not taken, though its session does not see that."""
    async with connected(server.port, client) as connection:
        assert connection.is_early
        asking = await echo(connection, b"hello" * 1000)
        assert connection.driver.was_resumed is resumed
        assert not connection.driver.took_early
        assert not connection.is_early
        assert asking.lost == []
        await echo(connection)


async def test_a_key_that_was_replaced(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        old = Sealer([b"o" * 32], PURPOSE)
        server.listener.reload_tickets(Tickets(old), early=True)
        await refused(server, client, resumed=False)
        await until(lambda: tickets_of(client) == 1)
        # And one that is still there, though another seals now.
        server.listener.reload_tickets(Tickets(Sealer([b"n" * 32, b"o" * 32], PURPOSE)), early=True)
        async with connected(server.port, client) as connection:
            await echo(connection)
            await until(lambda: connection.driver.is_confirmed)
            assert connection.driver.took_early


async def test_early_data_that_was_switched_off(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        server.listener.reload_tickets(server.listener.door.policy.tickets, early=False)
        await refused(server, client, resumed=True)


async def test_limits_that_were_lowered(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        server.listener.reload_limits(replace(config.limits, max_streams=10), "auto")
        await refused(server, client, resumed=True)


@pytest.fixture
def authorities(tmp_path: Path) -> Callable[..., str]:
    def write(*cas: Any) -> str:
        file = tmp_path / "client-ca.pem"
        file.write_bytes(b"".join(ca.pem for ca in cas))
        return str(file)

    return write


async def test_a_client_is_who_it_was_before_the_handshake_is_complete(
    config: ServerConfig, client: ClientConfig, tmp_path: Path, authorities: Callable[..., str]
) -> None:
    app = CA.issue("app")
    cert_file, key_file = app.save(tmp_path, "client")
    client = replace(client, cert_file=cert_file, key_file=key_file)
    async with echo_server(replace(config, client_ca_file=authorities(CA))) as server:
        await get_ticket(server.port, client)
        async with connected(server.port, client) as connection:
            assert connection.is_early
            await echo(connection)
            await until(lambda: connection.driver.is_confirmed)
            assert connection.driver.took_early
        assert [each.get_extra_info("peercert") for each in server.accepted] == [app.certificate] * 2


async def test_a_ca_that_was_withdrawn_lets_nobody_in_by_a_ticket(
    config: ServerConfig, client: ClientConfig, tmp_path: Path, authorities: Callable[..., str]
) -> None:
    other = authority("other CA")
    cert_file, key_file = other.issue("app").save(tmp_path, "client")
    client = replace(client, cert_file=cert_file, key_file=key_file)
    config = replace(config, client_ca_file=authorities(CA, other))
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        accepted = len(server.accepted)
        identity = Identity.load(config.cert_file, config.key_file, authorities(CA), now=0)
        server.listener.reload_certificates(identity)
        lost: list[BaseException] = []
        async with connected(server.port, client) as connection:
            assert connection.is_early
            connection.on_lost = lost.append
            transport, asking = connection.open_stream(Asking)
            transport.write(b"hello")
            await until(lambda: bool(asking.lost) and bool(lost))
            assert connection.is_early, "it never came to be"
        assert isinstance(lost[0], CertificateError)
        assert isinstance(asking.lost[0], SessionLost)
        assert asking.lost[0].retry_safe
        assert len(server.accepted) == accepted
        with pytest.raises(CertificateError):
            await connect("127.0.0.1", server.port, config=client, timeout=PATIENCE)


async def test_a_client_that_has_another_certificate_now_does_not_go_by_the_old_one(
    config: ServerConfig, client: ClientConfig, tmp_path: Path, authorities: Callable[..., str]
) -> None:
    async with echo_server(replace(config, client_ca_file=authorities(CA))) as server:
        for name in ("app", "other"):
            cert_file, key_file = CA.issue(name).save(tmp_path, name)
            await get_ticket(server.port, replace(client, cert_file=cert_file, key_file=key_file))
        assert server.listener.handshakes.full == 2


async def test_a_ticket_that_was_got_without_looking_is_not_used_where_one_looks(
    config: ServerConfig, client: ClientConfig
) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, replace(client, ca_data=None, verify=False))
        await get_ticket(server.port, client)
        await get_ticket(server.port, replace(client, ca_data=CA.pem + authority("more").pem))
        assert server.listener.handshakes.resumed == 0


async def test_a_ticket_ends_with_the_certificate_that_was_shown(
    config: ServerConfig, client: ClientConfig, tmp_path: Path
) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        name = gateway_name(client.quic("127.0.0.1", now=0), server.port)
        assert client.tickets is not None
        kept = client.tickets.take(name, f"127.0.0.1:{server.port}", 0)
        assert kept is not None
        assert kept.until == SERVER.certificate.not_valid_after_utc.timestamp()


# The way


async def test_retry_costs_a_round_trip_and_no_early_data(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        server.listener.reload_limits(config.limits, "always")
        async with connected(server.port, client) as connection:
            assert connection.is_early
            await asyncio.gather(*(echo(connection, bytes(each * 100)) for each in range(1, 40)))
            await until(lambda: connection.driver.is_confirmed)
            assert connection.driver.took_early
            await until(lambda: connection.driver.quic._loss.bytes_in_flight == 0)
        assert server.listener.counters.retries == 1


async def test_nobody_answers(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server, recording_relay(server.port) as (between, _):
        await get_ticket(between.port, client)
        between.is_silent = True
        lost: list[BaseException] = []
        async with connected(between.port, client, timeout=0.3) as connection:
            connection.on_lost = lost.append
            transport, asking = connection.open_stream(Asking)
            transport.write(b"hello")
            await until(lambda: bool(lost) and bool(asking.lost))
        assert isinstance(lost[0], GatewayUnreachable)
        assert "within 0.3 s (connect_timeout)" in str(lost[0])
        assert isinstance(asking.lost[0], SessionLost)
        assert asking.lost[0].retry_safe
        assert tickets_of(client) == 1, "nobody has seen it who could use it up"
        with pytest.raises(GatewayUnreachable):
            await connect("127.0.0.1", between.port, config=client, timeout=0.3)
        between.is_silent = False
        await get_ticket(between.port, client)
        async with connected(between.port, client) as connection:
            assert connection.is_early, "now that it has answered again"
            await echo(connection)


async def test_nobody_listens_there_any_more(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server:
        await get_ticket(server.port, client)
        port = server.port
    with pytest.raises(GatewayUnreachable, match="nothing listens on that UDP port"):
        async with connected(port, client) as connection:
            assert connection.is_early
            # It is a matter of some turns of the loop.
            await until(lambda: not connection.is_alive)
            assert connection.driver.error is not None
            raise connection.driver.error
    assert tickets_of(client) == 1


@pytest.mark.parametrize("steered", [True, False], ids=["by the kernel", "by each other"])
async def test_early_data_finds_its_worker(config: ServerConfig, client: ClientConfig, steered: bool) -> None:
    async with echo_fleet(config, workers=3, steered=steered) as fleet:
        await get_ticket(fleet.port, client)
        for _ in range(8):
            async with connected(fleet.port, client) as connection:
                assert connection.is_early
                # More than fits into one datagram.
                await echo(connection, bytes(5000))
                await until(lambda: tickets_of(client) == 1)
                assert connection.driver.took_early
        assert sum(listener.handshakes.early for listener in fleet.living.values()) == 8
        assert len({index for index, _ in fleet.accepted}) > 1


# Replays


async def test_a_replay_to_the_same_worker_is_not_taken(config: ServerConfig, client: ClientConfig) -> None:
    async with echo_server(config) as server, recording_relay(server.port) as (between, carried):
        await get_ticket(between.port, client)
        carried.clear()
        async with connected(between.port, client) as connection:
            await echo(connection, b"once")
            await until(lambda: connection.driver.is_confirmed)
            flight = first_flight(carried)
            heard = len(server.accepted)
            # While the connection is there, its packets are its own: copies, which are dropped.
            async with replay(server.port) as again:
                again.send(flight * 3)
                await asyncio.sleep(0.05)
                assert len(server.accepted) == heard
        await server.until(connections=0, streams=0, connection_ids=0)
        async with replay(server.port) as again:
            again.send(flight)
            await until(lambda: bool(again.answers))
            assert server.listener.half_open == 1
            await asyncio.sleep(0.05)
            assert len(server.accepted) == heard, "no stream of it was opened"
        assert server.listener.handshakes.early == 1


async def test_a_replay_to_another_worker_is_never_confirmed(config: ServerConfig, client: ClientConfig) -> None:
    """What is taken there is not acted on by those above: see the gateway's tests."""
    async with echo_server(config) as server, recording_relay(server.port) as (between, carried):
        await get_ticket(between.port, client)
        carried.clear()
        async with connected(between.port, client) as connection:
            await echo(connection, b"once")
        limits = replace(config.limits, handshake_timeout=0.3)
        async with echo_server(replace(config, limits=limits)) as other, replay(other.port) as again:
            again.send(first_flight(carried))
            await until(lambda: bool(other.accepted))
            (stream,) = other.accepted
            assert stream.get_extra_info("early") is True
            confirmed: list[bool] = []
            stream.get_extra_info("quic_connection").call_when_confirmed(lambda: confirmed.append(True))
            again.send(carried)
            await other.until(half_open=0, streams=0, connection_ids=0)
            assert confirmed == []
            assert (other.listener.handshakes.resumed, other.listener.handshakes.full) == (0, 0)
