"""Clients on real sockets, on loopback."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509

from helpers.certificates import SERVER_AUTH, authority, self_signed
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Echo, Recorder, identities
from pgtrunk.errors import CertificateError, CertificateFileError, GatewayUnreachable, SessionLost, UsageError
from pgtrunk.quic import ClientConfig, ClientConnection, QuicLimits, connect


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """No socket and no thread more than before; unclosed sockets warn when they are collected, and warnings are
    errors."""
    gc.collect()
    threads = threading.active_count()
    yield
    gc.collect()
    assert threading.active_count() <= threads + 1  # the resolver's pool keeps a thread


async def opened(server: LoopbackServer, **settings: Any) -> ClientConnection:
    return await connect("127.0.0.1", server.port, config=server.client(**settings), timeout=10)


async def ended(connection: ClientConnection) -> None:
    connection.close()
    async with asyncio.timeout(10):
        await connection.wait_closed()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is the state of two ends, which set no event
            await asyncio.sleep(0.001)


async def test_an_echo() -> None:
    async with LoopbackServer() as server:
        connection = await opened(server)
        assert connection.is_alive
        assert connection.stream_credit == server.limits.max_streams
        transport, protocol = connection.open_stream(Recorder)
        assert connection.open_streams == 1
        assert connection.stream_credit == server.limits.max_streams - 1
        transport.write(b"hello" * 100_000)
        await until(lambda: len(protocol.data) == 500_000)
        assert 0 < connection.round_trip_time < 1
        transport.close()
        await until(lambda: connection.open_streams == 0)
        await ended(connection)
        assert not connection.is_alive
        assert "closed" in repr(connection)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_addresses_and_names(host: str) -> None:
    async with LoopbackServer(host=host if host != "localhost" else "127.0.0.1") as server:
        connection = await connect(host, server.port, config=server.client(), timeout=10)
        transport, protocol = connection.open_stream(Recorder)
        assert transport.get_extra_info("peername")[0] in ("127.0.0.1", "::1")
        assert transport.get_extra_info("sockname")[1] > 0
        transport.write(b"x")
        await until(lambda: protocol.data == b"x")
        await ended(connection)


async def test_a_closed_port_is_refused_at_once() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with asyncio.timeout(30):
        with pytest.raises(GatewayUnreachable, match=f"127.0.0.1:{port} refused the connection: nothing listens"):
            await connect("127.0.0.1", port, config=ClientConfig(), timeout=60)


async def test_all_addresses_are_tried() -> None:
    """Of localhost's two addresses one listens; which comes first is the resolver's choice."""
    for host in ("127.0.0.1", "::1"):
        async with LoopbackServer(host=host) as server:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo("localhost", server.port, type=socket.SOCK_DGRAM)
            if host in [address[4][0] for address in found]:
                await ended(await connect("localhost", server.port, config=server.client(), timeout=10))


async def test_silence_ends_at_the_timeout() -> None:
    async with LoopbackServer(answers=False) as server:
        with pytest.raises(GatewayUnreachable, match=r"did not answer within 0\.3 s \(connect_timeout\)"):
            await connect("127.0.0.1", server.port, config=server.client(), timeout=0.3)


async def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(GatewayUnreachable, match=r"host 'no-such-host\.invalid' (cannot be|was not) resolved"):
        await connect("no-such-host.invalid", 1, config=ClientConfig(), timeout=5)


async def test_the_resolver_is_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **kwargs: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(GatewayUnreachable, match=r"not resolved within 0\.1 s"):
        await connect("gateway.example", 1, config=ClientConfig(), timeout=0.1)


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_connect_leaves_nothing(turns: int) -> None:
    async with LoopbackServer() as server:
        loop: Any = asyncio.get_running_loop()
        sockets = len(loop._selector.get_map())
        task = loop.create_task(connect("127.0.0.1", server.port, config=server.client(), timeout=30))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            connection = await task
        except asyncio.CancelledError:
            pass
        else:
            await ended(connection)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(loop._selector.get_map()) == sockets


async def test_a_cancelled_connect_tells_the_gateway() -> None:
    async with LoopbackServer() as server:
        task = asyncio.ensure_future(connect("127.0.0.1", server.port, config=server.client(), timeout=30))
        await until(lambda: server.drivers != [])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.driver.is_lost)


async def test_closing_ends_streams_on_both_ends() -> None:
    async with LoopbackServer() as server:
        connection = await opened(server)
        lost: list[Any] = []
        connection.on_lost = lost.append
        transport, protocol = connection.open_stream(Recorder)
        transport.write(b"x")
        await until(lambda: protocol.data == b"x")
        await ended(connection)
        assert isinstance(protocol.lost[0], SessionLost)
        await until(lambda: server.protocols[0].lost != [])
        assert lost == []  # it did not end by itself
        with pytest.raises(SessionLost):
            connection.open_stream(Recorder)


async def test_a_gateway_that_closes_is_reported_with_its_reason() -> None:
    async with LoopbackServer() as server:
        connection = await opened(server)
        lost: list[Any] = []
        connection.on_lost = lost.append
        protocol = connection.open_stream(Recorder)[1]
        await until(lambda: server.driver.is_ready)
        server.driver.close(reason="restart")
        await until(lambda: lost != [])
        assert isinstance(lost[0], SessionLost)
        assert "the other end closed it: restart" in str(lost[0])
        await until(lambda: protocol.lost != [])
        assert str(protocol.lost[0]) == str(lost[0])
        async with asyncio.timeout(10):
            await connection.wait_closed()


async def test_a_gateway_that_dies_is_noticed_by_the_refusals() -> None:
    """Seconds before the idle timeout: its kernel says that nobody listens any more."""
    async with LoopbackServer() as server:
        connection = await opened(server, limits=QuicLimits(max_streams=0, idle_timeout=60))
        lost: list[Any] = []
        connection.on_lost = lost.append
        transport, protocol = connection.open_stream(Recorder)
        transport.write(b"x")
        await until(lambda: protocol.data == b"x")
        server.vanish()
        await asyncio.sleep(0)
        transport.write(b"y")
        await until(lambda: lost != [])
        assert "nothing listens there any more" in str(lost[0])
        async with asyncio.timeout(10):
            await connection.wait_closed()


async def test_credit_is_told() -> None:
    async with LoopbackServer(limits=QuicLimits(max_streams=2)) as server:
        connection = await opened(server)
        grown: list[int] = []
        connection.on_credit = lambda: grown.append(connection.stream_credit)
        first, _ = connection.open_stream(Recorder)
        connection.open_stream(Recorder)
        with pytest.raises(SessionLost, match="allows no more"):
            connection.open_stream(Recorder)
        first.write(b"x")
        first.close()
        await until(lambda: grown == [1])
        await ended(connection)


async def test_many_streams_at_once() -> None:
    async with LoopbackServer() as server:
        connection = await opened(server)
        protocols = [connection.open_stream(Recorder)[1] for _ in range(300)]
        for number, protocol in enumerate(protocols):
            protocol.transport.write(b"%d" % number * 50)
        await until(lambda: all(len(p.data) == len(b"%d" % n * 50) for n, p in enumerate(protocols)))
        assert all(protocol.data == b"%d" % number * 50 for number, protocol in enumerate(protocols))
        await ended(connection)


async def test_a_paused_reader_bounds_what_the_gateway_can_send() -> None:
    async with LoopbackServer() as server:
        connection = await opened(server)
        transport, protocol = connection.open_stream(Recorder)
        transport.write(b"x")
        await until(lambda: protocol.data == b"x")
        transport.pause_reading()
        there = server.protocols[0]
        there.transport.write(bytes(3_000_000))
        window = connection.driver.quic.limits.initial_window
        await until(lambda: connection.driver.held_bytes >= window - 1)
        await asyncio.sleep(0.05)
        assert connection.driver.held_bytes <= window
        assert there.transport.get_write_buffer_size() >= 3_000_000 - window
        transport.resume_reading()
        await until(lambda: len(protocol.data) == 3_000_001)
        await ended(connection)


@pytest.mark.parametrize(
    "scenario",
    [
        test_an_echo,
        test_a_closed_port_is_refused_at_once,
        test_silence_ends_at_the_timeout,
        test_a_cancelled_connect_tells_the_gateway,
        test_a_gateway_that_closes_is_reported_with_its_reason,
        test_a_gateway_that_dies_is_noticed_by_the_refusals,
        test_a_paused_reader_bounds_what_the_gateway_can_send,
    ],
)
def test_the_same_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())


# -- certificates


def serving(identity: Any) -> Any:
    def configure(configuration: Any) -> None:
        configuration.certificate, configuration.private_key = identity.certificate, identity.key
        configuration.certificate_chain = list(identity.chain)

    return configure


async def refused(server: LoopbackServer, words: str, host: str = "127.0.0.1", **settings: Any) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(CertificateError, match=words):
            await connect(host, server.port, config=server.client(**settings), timeout=15)
    await until(lambda: server.driver.is_lost)


async def test_a_name_that_the_certificate_does_not_carry() -> None:
    async with LoopbackServer() as server:
        await refused(server, "not for 'elsewhere.example'", server_name="elsewhere.example")
        await refused(server, "localhost, 127.0.0.1, ::1, not for '127.0.0.9'", server_name="127.0.0.9")


async def test_a_server_name_may_differ_from_the_host() -> None:
    async with LoopbackServer() as server:
        await ended(await opened(server, server_name="localhost"))
        await ended(await opened(server, server_name="localhost."))


async def test_a_common_name_is_no_name() -> None:
    ca = identities()[0]
    async with LoopbackServer(configure=serving(ca.issue("127.0.0.1", usage=(SERVER_AUTH,)))) as server:
        await refused(server, "names nobody")


async def test_an_unknown_authority() -> None:
    async with LoopbackServer() as server:
        await refused(
            server,
            r"unable to get local issuer certificate; ca_file \(--ca\) names the CA that signed it",
            ca_data=authority("another CA").pem,
        )


async def test_the_systems_authorities_do_not_vouch_for_ours() -> None:
    async with LoopbackServer() as server:
        await refused(server, "issuer", ca_data=None)


async def test_a_self_signed_certificate() -> None:
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    async with LoopbackServer(configure=serving(self_signed("127.0.0.1", (names, False)))) as server:
        await refused(server, "self-signed certificate")


@pytest.mark.parametrize("days", [(-20.0, -1.0), (1.0, 20.0)])
async def test_dates(days: tuple[float, float]) -> None:
    expired = identities()[0].issue("gateway", usage=(SERVER_AUTH,), names=("127.0.0.1",), days=days)
    async with LoopbackServer(configure=serving(expired)) as server:
        await refused(server, "valid")


async def test_a_clients_certificate_cannot_play_the_gateway() -> None:
    client = identities()[0].issue("app", names=("127.0.0.1",))
    async with LoopbackServer(configure=serving(client)) as server:
        await refused(server, "lacks serverAuth")


async def test_a_chain_over_an_intermediate() -> None:
    from helpers.certificates import IS_CA

    ca = identities()[0]
    between = ca.issue("intermediate", *IS_CA, usage=None)
    leaf = between.issue("gateway", usage=(SERVER_AUTH,), names=("127.0.0.1",))
    async with LoopbackServer(configure=serving(leaf)) as server:
        await ended(await opened(server))


async def test_verification_can_only_be_left_out_by_name() -> None:
    async with LoopbackServer(configure=serving(self_signed("whoever"))) as server:
        await ended(await opened(server, ca_data=None, verify=False))
    assert ClientConfig().verify is True


async def test_ca_files(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"# our own CA\n" + identities()[0].pem + authority("another").pem)
    async with LoopbackServer() as server:
        await ended(await opened(server, ca_data=None, ca_file=str(path)))
        await ended(await opened(server, ca_data=authority("third").pem, ca_file=str(path)))
    with pytest.raises(CertificateFileError, match=r'cannot read ca_file ".*nowhere.pem": no such file'):
        await connect("127.0.0.1", 1, config=ClientConfig(ca_file=str(tmp_path / "nowhere.pem")), timeout=1)
    path.write_bytes(b"not a certificate")
    with pytest.raises(CertificateFileError, match="holds no certificate"):
        await connect("127.0.0.1", 1, config=ClientConfig(ca_file=str(path)), timeout=1)
    with pytest.raises(CertificateFileError, match="ca_data holds no certificate"):
        await connect("127.0.0.1", 1, config=ClientConfig(ca_data=b""), timeout=1)


async def test_client_files(tmp_path: Path) -> None:
    cert, key = identities()[0].issue("app").save(tmp_path, "app")
    other = identities()[0].issue("other").save(tmp_path, "other")[1]
    async with LoopbackServer() as server:
        await ended(await opened(server, cert_file=cert, key_file=key))  # not asked for, not sent
        with pytest.raises(CertificateFileError, match="key_file"):
            await opened(server, cert_file=cert, key_file=other)


@pytest.mark.parametrize("host", ["", "a" * 64 + ".example", "."])
async def test_hosts_that_are_no_names(host: str) -> None:
    with pytest.raises(UsageError, match="not a host name"):
        await connect(host, 1, config=ClientConfig(), timeout=1)


def test_the_echo_helper_is_a_protocol() -> None:
    assert isinstance(Echo(), asyncio.Protocol)


async def test_the_error_tells_which_names_and_which_was_expected() -> None:
    async with LoopbackServer() as server:
        with pytest.raises(CertificateError, match=r"not for 'gw\.example'; server_name \(--server-name\)") as caught:
            await connect("127.0.0.1", server.port, config=server.client(server_name="gw.example"), timeout=10)
    assert caught.value.expected == "gw.example"
    assert "localhost" in caught.value.presented
    assert caught.value.retry_safe
