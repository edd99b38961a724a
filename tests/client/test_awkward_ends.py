"""What is ended in the very turn in which it begins, twice, from elsewhere, or while it is being ended already."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import tempfile
from typing import Any

import pytest

from helpers.fake_gateway import FakeGateway
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Recorder, identities
from helpers.trunks import fake_trunk, open_session, turns, until
from pgtrunk.background import BackgroundTrunk
from pgtrunk.decisions import Dial
from pgtrunk.errors import UsageError
from pgtrunk.manager import StreamManager
from pgtrunk.sidecar import Sidecar, TcpEndpoint, UnixEndpoint
from pgtrunk.sidecar.listening import listen
from pgtrunk.tcp.transport import TcpTransport
from pgtrunk.wire.startup import StartupMessage

STARTUP = StartupMessage(parameters={"user": "app"}).encode()


async def test_a_replacement_that_is_given_up_before_its_first_step() -> None:
    """A coroutine that nobody has begun would warn when it is collected, and warnings are errors."""
    async with fake_trunk() as (trunk, gateway):
        opened = await open_session(trunk)
        trunk.lines.dial(Dial(99, 0, 1, 0, replaces=opened.link))
        await trunk.close()
        assert gateway.dials == 1


async def test_closing_on_another_loop_stops_nothing() -> None:
    manager = StreamManager("gw.test", dangerously_skip_certificate_verification=True)
    manager._dialer.dial = FakeGateway().connect  # type: ignore[method-assign]
    async with manager:
        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, manager.close())
        assert manager._balancer is not None
        assert not manager._balancer._has_stopped
        assert not manager._dialer._has_stopped
    assert manager._balancer._has_stopped


# Sidecars.


async def test_a_sidecar_whose_closing_is_cancelled_has_no_patience() -> None:
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        async with (
            LoopbackServer(Recorder) as server,
            StreamManager(f"127.0.0.1:{server.port}", ca_data=identities()[0].pem) as manager,
        ):
            sidecar = Sidecar(manager, [UnixEndpoint(folder)])
            await sidecar.open()
            _, writer = await asyncio.open_unix_connection(UnixEndpoint(folder).path)
            writer.write(STARTUP)
            await until(lambda: server.protocols and server.protocols[0].data == STARTUP)
            closing = asyncio.create_task(sidecar.close())
            await turns()
            assert sidecar.sessions == 1
            closing.cancel()
            await asyncio.wait([closing])
            await turns(20)
            assert sidecar.sessions == 0
            writer.close()
            await until(lambda: not any(driver.streams for driver in server.drivers))


async def test_a_sidecar_whose_folder_has_become_something_else_closes_all_the_same() -> None:
    folder = tempfile.mkdtemp(prefix="sc-")
    try:
        listener = await listen(UnixEndpoint(folder), asyncio.Protocol, allow_remote=False)
        shutil.rmtree(folder)
        os.mknod(folder)
        server = listener._server
        listener.close()
        assert not server.is_serving()
    finally:
        os.unlink(folder)


# A trunk in a thread.


def test_what_a_trunk_does_is_told_while_its_thread_ends() -> None:
    trunk = BackgroundTrunk("127.0.0.1:1", dangerously_skip_certificate_verification=True)
    trunk.open()
    endpoint, thread = trunk._endpoint, trunk._thread
    trunk.close()
    # As somebody sees it who asked a moment before.
    trunk._endpoint = endpoint
    assert thread is not None
    assert not thread.is_alive()
    assert trunk.stats().streams_in_use == 0


@pytest.mark.parametrize("turn", range(6))
async def test_a_sidecar_that_is_given_up_while_it_begins_to_listen(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listening = asyncio.create_task(listen(TcpEndpoint("127.0.0.1", port), asyncio.Protocol, allow_remote=False))
    await turns(turn)
    listening.cancel()
    await asyncio.wait([listening])
    if not listening.cancelled():
        listening.result().close()
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


async def test_the_marks_of_a_transport_whose_socket_is_closed_already() -> None:
    """uvloop's own transports raise then, and a protocol that has not been told yet may set them."""

    class Closed(asyncio.Transport):
        def is_closing(self) -> bool:
            return True

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            raise RuntimeError("the handler is closed")

    transport = TcpTransport(asyncio.Protocol())
    transport._below = Closed()
    transport.set_write_buffer_limits(high=100)
    assert transport.get_write_buffer_limits() == (25, 100)
