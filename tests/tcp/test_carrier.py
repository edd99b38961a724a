"""Sessions over TLS over TCP, on loopback, to gateways of every kind."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from helpers.certificates import CLIENT_AUTH, SERVER_AUTH, authority
from helpers.quic_pair import Echo, Recorder, identities
from helpers.tcp_gateway import SSL_REQUEST, TcpGateway
from helpers.trunks import until
from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost
from pgtrunk.tcp.cap import Cap
from pgtrunk.tcp.carrier import TcpCarrier
from pgtrunk.tcp.opening import Place, open_line
from pgtrunk.tcp.tls import make_terms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pgtrunk.quic.client_config import ClientConfig


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Sockets that nobody has closed warn when they are collected, and warnings are errors."""
    gc.collect()
    yield
    gc.collect()


def place(port: int, config: ClientConfig, *, direct: bool = True) -> Place:
    return Place(socket.AF_INET, ("127.0.0.1", port), make_terms(config, "127.0.0.1", now=time.time()), direct)


async def line(gateway: TcpGateway, *, direct: bool = True, timeout: float = 20, **settings: Any) -> Place:
    """Opens a line and closes it again."""
    to = place(gateway.port, gateway.client(**settings), direct=direct)
    opened = await open_line(to, asyncio.get_running_loop().time() + timeout)
    assert opened.is_usable
    opened.close()
    await until(lambda: gateway.open == 0)
    return to


@asynccontextmanager
async def carrier(gateway: TcpGateway, *, most: int = 100, timeout: float = 20) -> AsyncIterator[TcpCarrier]:
    made = TcpCarrier(place(gateway.port, gateway.client()), Cap(most), timeout)
    try:
        yield made
    finally:
        made.close()
        async with asyncio.timeout(20):
            await made.wait_closed()
        assert made._cap.used == 0


async def test_direct_tls_is_the_first_choice() -> None:
    async with TcpGateway() as gateway:
        assert (await line(gateway)).direct
        assert [arrival.first[:1] for arrival in gateway.connections] == [b"\x16"]


async def test_a_gateway_that_wants_to_be_asked_is_asked_and_remembered() -> None:
    async with TcpGateway(direct=False) as gateway:
        assert not (await line(gateway)).direct
        assert [arrival.first[:1] for arrival in gateway.connections] == [b"\x16", b"\x00"]
        assert gateway.connections[1].first == SSL_REQUEST


async def test_direct_tls_needs_the_protocols_name() -> None:
    """Another service behind the same certificate could be made to take a password for what it is told."""
    async with TcpGateway(alpn=None) as gateway:
        assert not (await line(gateway)).direct


async def test_without_tls_nothing_is_said() -> None:
    async with TcpGateway(tls=False) as gateway:
        with pytest.raises(GatewayUnreachable, match=r"TCP at 127\.0\.0\.1:\d+ does not offer TLS"):
            await line(gateway)
        assert gateway.protocols == []


async def test_what_comes_in_clear_behind_the_answer_is_refused() -> None:
    class Stuffed(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"Sand more")

    server = await asyncio.get_running_loop().create_server(Stuffed, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(GatewayUnreachable, match="sent unencrypted data after its answer to SSLRequest"):
            await open_line(place(port, TcpGateway().client(), direct=False), asyncio.get_running_loop().time() + 20)


async def test_a_closed_port() -> None:
    async with TcpGateway() as gateway:
        await gateway.vanish()
        with pytest.raises(GatewayUnreachable, match="cannot be reached over TCP: nothing listens on that TCP port"):
            await line(gateway)


async def test_silence_ends_at_the_deadline() -> None:
    async with TcpGateway(answers=False) as gateway:
        with pytest.raises(GatewayUnreachable, match=r"did not answer over TCP within 0\.2 s \(connect_timeout\)"):
            await line(gateway, timeout=0.2)
        await until(lambda: gateway.open == 0)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"names": ("other.example", "192.0.2.7")}, "it is for other.example, 192.0.2.7, not for '127.0.0.1'"),
        ({"names": ()}, "it names nobody, not for '127.0.0.1'"),
        ({"days": (-10.0, -1.0)}, "expired"),
        ({"usage": (CLIENT_AUTH,)}, "purpose|serverAuth"),
    ],
)
async def test_wrong_certificates(direct: bool, wrong: dict[str, Any], words: str) -> None:
    right = {"usage": (SERVER_AUTH,), "names": ("127.0.0.1",)}
    async with TcpGateway(identity=identities()[0].issue("gateway", **(right | wrong))) as gateway:
        with pytest.raises(CertificateError, match=words) as caught:
            await line(gateway, direct=direct)
        if "names" in wrong:
            assert caught.value.presented == wrong["names"]
            assert caught.value.expected == "127.0.0.1"
        assert gateway.protocols == []
        # It is not asked a second time, in another way.
        assert len(gateway.connections) == 1


async def test_a_stranger_is_refused_with_advice_and_taken_on_request() -> None:
    stranger = authority("stranger").issue("gateway", usage=(SERVER_AUTH,), names=("127.0.0.1",))
    async with TcpGateway(identity=stranger) as gateway:
        with pytest.raises(CertificateError, match=r"ca_file \(--ca\) names the CA"):
            await line(gateway)
        await line(gateway, verify=False, ca_data=None)


async def test_a_name_of_ones_own_choice() -> None:
    identity = identities()[0].issue("gateway", usage=(SERVER_AUTH,), names=("gw.example.net",))
    async with TcpGateway(identity=identity) as gateway:
        await line(gateway, server_name="gw.example.net")


async def test_client_certificates(tmp_path: Path) -> None:
    clients = authority("clients")
    right, wrong = (ca.issue("app").save(tmp_path, name) for ca, name in ((clients, "a"), (authority("b"), "b")))
    async with TcpGateway(clients=clients) as gateway:
        for cert_file, key_file in (right, wrong):
            config = gateway.client(cert_file=cert_file, key_file=key_file)
            made = TcpCarrier(place(gateway.port, config), Cap(1), 20)
            transport, protocol = made.open_stream(Recorder)
            transport.write(b"hello")
            await until(lambda protocol=protocol: protocol.data or protocol.lost)  # type: ignore[misc]
            made.close()
            await made.wait_closed()
            if cert_file == right[0]:
                assert protocol.data == b"hello", protocol.lost
            else:
                # In TLS 1.3 the gateway says so when for us the handshake is over.
                assert isinstance(protocol.lost[0], CertificateError)
                assert "our certificate was refused by 127.0.0.1" in str(protocol.lost[0])


async def test_what_is_written_waits_for_the_line() -> None:
    async with TcpGateway() as gateway, carrier(gateway) as made:
        transport, protocol = made.open_stream(Recorder)
        assert transport.get_extra_info("transport") == "tcp"
        assert transport.get_extra_info("peername") is None
        assert made.stream_credit == 99
        transport.write(b"hello")
        transport.write(b" gateway")
        assert transport.get_write_buffer_size() == 13
        await until(lambda: len(protocol.data) == 13)
        assert protocol.data == b"hello gateway"
        assert transport.get_extra_info("peername") == ("127.0.0.1", gateway.port)
        assert transport.get_extra_info("cipher")[1] == "TLSv1.3"
        assert transport.get_extra_info("socket") is None
        transport.close()
        await until(lambda: protocol.lost == [None])
        assert made.stream_credit == 100


async def test_large_data_both_ways_with_pauses_on_both_sides() -> None:
    class Slow(Echo):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.pause_reading()

    async with TcpGateway(Slow) as gateway, carrier(gateway) as made:
        transport, protocol = made.open_stream(Recorder)
        data = bytes(range(256)) * 80_000
        transport.write(data)
        assert protocol.calls == ["made", "pause"]
        await until(lambda: gateway.protocols)
        await asyncio.sleep(0.05)
        assert transport.get_write_buffer_size() > 64 << 10
        assert "resume" not in protocol.calls
        transport.pause_reading()
        before = len(protocol.data)
        gateway.protocols[0].transport.resume_reading()
        await asyncio.sleep(0.05)
        assert len(protocol.data) == before < len(data)
        transport.resume_reading()
        await until(lambda: len(protocol.data) == len(data))
        assert protocol.data == data
        assert protocol.calls[-1] == "resume"


async def test_a_half_close_lets_answers_come() -> None:
    class Late(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def eof_received(self) -> bool:
            self.transport.write(b"answer")
            asyncio.get_running_loop().call_soon(self.transport.close)
            return True

    async with TcpGateway(Late) as gateway, carrier(gateway) as made:
        transport, protocol = made.open_stream(Recorder)
        transport.write(b"question")
        transport.write_eof()
        with pytest.raises(RuntimeError):
            transport.write(b"more")
        await until(lambda: protocol.lost)
        assert protocol.data == b"answer"
        assert protocol.lost == [None]


async def test_what_was_written_before_a_close_arrives() -> None:
    """A cancel is written and left alone."""

    kept: list[bytes] = []

    class Kept(Recorder):
        def data_received(self, data: bytes) -> None:
            kept.append(data)

    async with TcpGateway(Kept) as gateway, carrier(gateway) as made:
        transport, protocol = made.open_stream(Recorder)
        transport.write(b"cancel")
        transport.close()
        await until(lambda: kept)
        await until(lambda: protocol.lost == [None])
        assert kept == [b"cancel"]


async def test_a_session_that_is_given_up_before_it_has_a_line_needs_none() -> None:
    async with TcpGateway(answers=False) as gateway, carrier(gateway) as made:
        ends: list[BaseException | None] = []
        for end in ("close", "abort"):
            transport, protocol = made.open_stream(Recorder, on_closed=ends.append)
            getattr(transport, end)()
            await until(lambda protocol=protocol: protocol.lost == [None])  # type: ignore[misc]
        assert ends == [None, None]
        assert made.leave is None
        await until(lambda: gateway.open == 0)


async def test_the_cap_is_that_of_all_carriers() -> None:
    async with TcpGateway() as gateway:
        cap = Cap(3)
        first, second = (TcpCarrier(place(gateway.port, gateway.client()), cap, 20) for _ in range(2))
        grown: list[int] = []
        second.on_credit = lambda: grown.append(second.stream_credit)
        streams = [first.open_stream(Recorder)[0] for _ in range(3)]
        assert (first.stream_credit, second.stream_credit) == (0, 0)
        streams[0].close()
        await until(lambda: grown == [1])
        for made in (first, second):
            made.close()
            await made.wait_closed()
        assert cap.carriers == []


async def test_a_gateway_that_dies_takes_its_sessions_and_is_left() -> None:
    async with TcpGateway() as gateway, carrier(gateway, timeout=0.5) as made:
        left: list[Any] = []
        made.on_leave = left.append
        _, protocol = made.open_stream(Recorder)
        await until(lambda: gateway.protocols)
        await gateway.vanish()
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], SessionLost)
        assert left == []
        _, protocol = made.open_stream(Recorder)
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], GatewayUnreachable)
        assert protocol.lost[0].retry_safe
        assert len(left) == 1
        assert "it cannot be reached over TCP any more" in left[0].reason


async def test_a_session_waits_for_a_gateway_that_restarts() -> None:
    async with TcpGateway() as gateway, carrier(gateway) as made:
        await gateway.vanish()
        transport, protocol = made.open_stream(Recorder)
        transport.write(b"hello")
        await until(lambda: made.leave is not None)
        await gateway.listen()
        await until(lambda: protocol.data == b"hello")


async def test_a_carrier_that_is_closed_loses_its_sessions() -> None:
    async with TcpGateway() as gateway, carrier(gateway) as made:
        _, protocol = made.open_stream(Recorder)
        await until(lambda: gateway.protocols)
        _, unready = made.open_stream(Recorder)
        made.close()
        async with asyncio.timeout(20):
            await made.wait_closed()
        for each in (protocol, unready):
            assert isinstance(each.lost[0], SessionLost)
        with pytest.raises(SessionLost):
            made.open_stream(Recorder)
        await until(lambda: gateway.open == 0)


async def test_a_protocol_that_fails_ends_its_own_session_alone() -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("broken")

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["message"]))
    async with TcpGateway() as gateway, carrier(gateway) as made:
        healthy, other = made.open_stream(Recorder)
        transport, protocol = made.open_stream(Broken)
        transport.write(b"x")
        await until(lambda: protocol.lost)
        assert "its protocol failed in data_received" in str(protocol.lost[0])
        healthy.write(b"y")
        await until(lambda: other.data == b"y")
    assert failures == ["protocol.data_received() failed"]


@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_a_line_that_is_given_up_leaves_nothing(turns: int) -> None:
    async with TcpGateway() as gateway:
        to = place(gateway.port, gateway.client())
        task = asyncio.ensure_future(open_line(to, asyncio.get_running_loop().time() + 20))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            (await task).close()
        await until(lambda: gateway.open == 0)
