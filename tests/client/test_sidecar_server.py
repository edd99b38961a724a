"""A whole sidecar: local sockets, real QUIC on loopback, and a gateway that says what the test wants."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Echo, Recorder, identities
from helpers.trunks import until
from pgtrunk.manager import StreamManager
from pgtrunk.quic.config import QuicLimits
from pgtrunk.sidecar import Endpoint, Sidecar, TcpEndpoint, UnixEndpoint
from pgtrunk.wire import backend
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import CancelRequest, StartupMessage

STARTUP = StartupMessage(parameters={"user": "app"}).encode()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each way to listen: they are different transports."""
    if "way" in metafunc.fixturenames:
        metafunc.parametrize("way", ["unix", "tcp"])


class Site:
    """A sidecar, its trunk and its gateway."""

    def __init__(self, sidecar: Sidecar, manager: StreamManager, server: LoopbackServer) -> None:
        self.sidecar = sidecar
        self.manager = manager
        self.server = server

    async def connect(self, way: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        kind = UnixEndpoint if way == "unix" else TcpEndpoint
        endpoint = next(each for each in self.sidecar.endpoints if isinstance(each, kind))
        if isinstance(endpoint, UnixEndpoint):
            return await asyncio.open_unix_connection(endpoint.path)
        return await asyncio.open_connection(endpoint.host, endpoint.port)

    async def session(self, way: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]:
        """A driver that has sent its startup packet, and the gateway's end of its stream."""
        known = len(self.server.protocols)
        reader, writer = await self.connect(way)
        writer.write(STARTUP)
        await until(lambda: len(self.server.protocols) > known and self.server.protocols[known].data)
        return reader, writer, self.server.protocols[known]

    async def settle(self) -> None:
        await until(lambda: not self.sidecar.sessions)
        await until(lambda: not self.manager.stats().streams_in_use + self.manager.stats().cancels_in_use)
        await until(lambda: not any(driver.streams for driver in self.server.drivers))


@asynccontextmanager
async def site(
    accept: Callable[[], asyncio.BaseProtocol] = Recorder, *, limits: QuicLimits | None = None, **settings: Any
) -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        endpoints: list[Endpoint] = [UnixEndpoint(folder), TcpEndpoint("127.0.0.1", 0)]
        async with (
            LoopbackServer(accept, limits=limits) as server,
            StreamManager(f"127.0.0.1:{server.port}", ca_data=identities()[0].pem, **settings) as manager,
            Sidecar(manager, endpoints) as sidecar,
        ):
            yield Site(sidecar, manager, server)
            await sidecar.close()
            assert sidecar.sessions == 0


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def error_from(reader: asyncio.StreamReader) -> backend.ErrorFields:
    """The error that is the last that is said."""
    async with asyncio.timeout(20):
        said = await reader.read()
    messages = MessageReader(10_000)
    messages.feed(said)
    message = messages.next()
    assert message is not None
    assert (message[0], messages.rest()) == (backend.ERROR, b"")
    return backend.parse_error(message[1])


# -- bytes -------------------------------------------------------------------------------------------------------------


async def test_a_megabyte_there_and_back(way: str) -> None:
    async with site(Echo) as at:
        reader, writer = await at.connect(way)
        # One message, so that it is one whole at its end.
        said = STARTUP + b"x" * (1 << 20)
        writer.write(said)
        async with asyncio.timeout(30):
            assert await reader.readexactly(len(said)) == said
        await close(writer)
        await at.settle()


async def test_a_driver_that_does_not_read_stops_the_gateway(way: str) -> None:
    class Flood(Recorder):
        written = 0
        is_paused = False

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.flood()

        def flood(self) -> None:
            while not self.is_paused and self.written < 64 << 20:
                self.transport.write(backend.data_row([b"x" * 8192]))
                self.written += 8192

        def pause_writing(self) -> None:
            self.is_paused = True

        def resume_writing(self) -> None:
            self.is_paused = False
            self.flood()

    limits = QuicLimits(max_stream_window=256 << 10)
    async with site(Flood, limits=limits) as at:
        reader, writer, flood = await at.session(way)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while before != flood.written:
            before = flood.written
            await asyncio.sleep(0.3)
        # The windows, and what sockets and transports hold; the rest of the 64 MiB waits at the gateway.
        assert flood.written < 16 << 20
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readexactly(before + (1 << 20))
        writer.transport.abort()
        await at.settle()


async def test_a_gateway_that_does_not_read_stops_the_driver(way: str) -> None:
    async with site() as at:
        _, writer, gateway = await at.session(way)
        gateway.transport.pause_reading()
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                writer.write(b"x" * 65536)
                sent += 65536
                await asyncio.wait_for(writer.drain(), 0.5)
        assert sent < 16 << 20
        gateway.transport.resume_reading()
        await until(lambda: len(gateway.data) >= sent)
        writer.transport.abort()
        await at.settle()


# -- ends --------------------------------------------------------------------------------------------------------------


async def test_the_drivers_fin_reaches_the_gateway_whose_answer_still_comes(way: str) -> None:
    class Answer(Recorder):
        def eof_received(self) -> bool:
            super().eof_received()
            self.transport.write(b"Z\0\0\0\5I")
            self.transport.close()
            return True

    async with site(Answer) as at:
        reader, writer, gateway = await at.session(way)
        writer.write_eof()
        assert await reader.read() == b"Z\0\0\0\5I"
        assert "eof" in gateway.calls
        await close(writer)
        await at.settle()


async def test_a_driver_that_dies_takes_its_stream_along(way: str) -> None:
    async with site() as at:
        _, writer, gateway = await at.session(way)
        writer.transport.abort()
        await until(lambda: {"eof", "lost"} & set(gateway.calls))
        await at.settle()


async def test_the_gateways_fin_ends_the_driver_which_may_still_be_talking(way: str) -> None:
    """What it says then is dropped; a socket closed with it unread would take the last words back."""
    async with site() as at:
        reader, writer, gateway = await at.session(way)
        writer.write(b"x" * 100_000)
        gateway.transport.write(backend.error("57P01", "terminating connection", severity="FATAL"))
        gateway.transport.close()
        assert (await error_from(reader)).sqlstate == "57P01"
        writer.write(b"x" * 100_000)
        await writer.drain()
        await close(writer)
        await at.settle()


async def test_a_reset_by_the_gateway_is_told(way: str) -> None:
    async with site() as at:
        reader, writer, gateway = await at.session(way)
        gateway.transport.abort()
        told = await error_from(reader)
        assert (told.severity, told.sqlstate) == ("FATAL", "08006")
        assert "was reset by the other end" in told.message
        await close(writer)
        await at.settle()


async def test_a_gateway_that_goes_is_told_and_the_next_session_finds_it_gone(way: str) -> None:
    async with site(acquire_timeout=0.5, connect_timeout=0.3) as at:
        reader, writer, _ = await at.session(way)
        at.server.driver.close()
        assert (await error_from(reader)).sqlstate == "08006"
        await close(writer)
        at.server.answers = False
        reader, writer = await at.connect(way)
        writer.write(STARTUP)
        told = await error_from(reader)
        assert told.sqlstate == "08001"
        assert told.message.startswith(f"gateway 127.0.0.1:{at.server.port} cannot be reached")
        await close(writer)


# -- the cap -----------------------------------------------------------------------------------------------------------


async def test_a_full_trunk_is_told_but_lets_cancels_through(way: str) -> None:
    class Login(Recorder):
        def data_received(self, data: bytes) -> None:
            if data == STARTUP:
                key = 100 + self.transport.get_extra_info("stream_id")
                self.transport.write(backend.authentication_ok() + backend.backend_key_data(key, b"1234"))
            super().data_received(data)

    async with site(Login, connections=2, streams_per_connection=1, acquire_timeout=0.3) as at:
        sessions = [await at.session(way) for _ in range(2)]
        reader, writer = await at.connect(way)
        writer.write(STARTUP)
        told = await error_from(reader)
        assert (told.severity, told.sqlstate) == ("FATAL", "53300")
        assert "no stream became free within acquire_timeout=0.3 s" in told.message
        await close(writer)
        await until(lambda: [each.pid for each in at.sidecar._sessions] == [100, 100])
        # Both gateways' ends gave out the same pid; one that nobody gave out goes as well.
        for pid in (100, 5):
            request = CancelRequest(pid, b"1234").encode()
            reader, writer = await at.connect(way)
            writer.write(request)
            await until(lambda request=request: at.server.protocols[-1].data == request)  # type: ignore[misc]
            at.server.protocols[-1].transport.close()
            assert await reader.read() == b""
            await close(writer)
        assert at.manager.stats().cancels_sent == 2
        for _, writer, _ in sessions:
            await close(writer)
        await at.settle()


async def test_a_cancel_goes_beside_its_session(way: str) -> None:
    # Two of them have the same pid, as sessions at several gateways may; and there are keys of 3.0 and of 3.2.
    keys = [(100, b"1234"), (200, b"5678"), (200, bytes(32)), (100, bytes(256))]
    to_give = iter(keys)

    class Login(Recorder):
        def data_received(self, data: bytes) -> None:
            if data == STARTUP:
                self.transport.write(backend.backend_key_data(*next(to_give)))
            super().data_received(data)

    async with site(Login, connections=len(keys), streams_per_connection=1) as at:
        sessions = [await at.session(way) for _ in keys]
        await until(lambda: sorted(each.pid or 0 for each in at.sidecar._sessions) == [100, 100, 200, 200])
        for key, (_, _, gateway) in zip(keys, sessions, strict=True):
            reader, writer = await at.connect(way)
            request = CancelRequest(*key).encode()
            writer.write(request)
            await until(lambda request=request: at.server.protocols[-1].data == request)  # type: ignore[misc]
            cancel = at.server.protocols[-1].transport
            assert cancel.get_extra_info("quic_connection") is gateway.transport.get_extra_info("quic_connection")
            cancel.close()
            assert await reader.read() == b""
            await close(writer)
        for _, writer, _ in sessions:
            await close(writer)
        await at.settle()


async def test_a_cancel_where_nobody_is_connected_goes_too(way: str) -> None:
    async with site() as at:
        _, writer = await at.connect(way)
        request = CancelRequest(1, b"1234").encode()
        writer.write(request)
        await close(writer)
        await until(lambda: at.server.protocols and at.server.protocols[-1].data == request)
        at.server.protocols[-1].transport.close()
        await at.settle()


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_draining_waits_for_sessions_and_takes_no_new_ones(way: str) -> None:
    async with site(Echo) as at:
        reader, writer, _ = await at.session(way)
        silent, silent_writer = await at.connect(way)
        await until(lambda: at.sidecar.sessions == 2)
        endpoints = at.sidecar.endpoints
        at.sidecar.stop_accepting()
        assert await silent.read() == b""
        await close(silent_writer)
        for endpoint in endpoints:
            with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
                if isinstance(endpoint, UnixEndpoint):
                    await asyncio.open_unix_connection(endpoint.path)
                else:
                    await asyncio.open_connection(endpoint.host, endpoint.port)
        drained = asyncio.create_task(at.sidecar.wait_drained())
        assert await reader.readexactly(len(STARTUP)) == STARTUP
        assert not drained.done()
        await close(writer)
        async with asyncio.timeout(20):
            await drained


async def test_closing_tells_sessions_and_waits_for_none(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.sidecar.server.FAREWELL_TIMEOUT", 0.2)
    async with site() as at:
        reader, writer, _ = await at.session(way)
        deaf_reader, deaf_writer, _ = await at.session(way)
        _, silent_writer = await at.connect(way)
        closing = asyncio.create_task(at.sidecar.close())
        assert (await error_from(reader)).sqlstate == "57P01"
        await close(writer)
        async with asyncio.timeout(20):
            await closing
        assert repr(at.sidecar) == "<Sidecar at nowhere [0 sessions]>"
        assert (await error_from(deaf_reader)).sqlstate == "57P01"
        await close(deaf_writer)
        await close(silent_writer)


async def test_where_one_place_is_taken_no_other_is_listened_at() -> None:
    async with site() as at:
        taken = at.sidecar.endpoints[1]
        with tempfile.TemporaryDirectory(prefix="sc-") as folder:
            place = UnixEndpoint(folder)
            with pytest.raises(OSError, match="in use"):
                await Sidecar(at.manager, [place, taken]).open()
            with pytest.raises(FileNotFoundError):
                await asyncio.open_unix_connection(place.path)
