"""Our connection speaks QUIC, not a dialect: with stock aioquic at either end."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aioquic.asyncio.client import connect as stock_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve as stock_serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Recorder, identities, present
from pgtrunk.quic import ClientConfig, connect

SIZE = 300_000


class StockEcho(QuicConnectionProtocol):
    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self._quic.send_stream_data(event.stream_id, event.data, event.end_stream)


class StockAsker(QuicConnectionProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.got: dict[int, int] = {}
        self.ended: set[int] = set()
        self.all_ended = asyncio.Event()

    def ask(self, streams: int) -> None:
        for _ in range(streams):
            stream_id = self._quic.get_next_available_stream_id()
            self.got[stream_id] = 0
            self._quic.send_stream_data(stream_id, bytes(SIZE), True)
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self.got[event.stream_id] += len(event.data)
            if event.end_stream:
                self.ended.add(event.stream_id)
            if len(self.ended) == len(self.got):
                self.all_ended.set()


async def test_a_stock_client_at_our_server() -> None:
    async with LoopbackServer() as server:
        configuration = QuicConfiguration(alpn_protocols=["postgresql"], verify_mode=ssl.CERT_NONE)
        async with (
            asyncio.timeout(40),
            stock_connect("127.0.0.1", server.port, configuration=configuration, create_protocol=StockAsker) as client,
        ):
            assert isinstance(client, StockAsker)
            client.ask(5)
            await client.all_ended.wait()
            assert set(client.got.values()) == {SIZE}
        assert all(each.data == bytes(SIZE) for each in server.protocols)
        assert server.driver.held_bytes == 0


async def test_our_client_at_a_stock_server() -> None:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["postgresql"])
    present(configuration)
    server = await stock_serve("127.0.0.1", 0, configuration=configuration, create_protocol=StockEcho)
    try:
        assert server._transport is not None
        port = server._transport.get_extra_info("sockname")[1]
        async with asyncio.timeout(40):
            config = ClientConfig(ca_data=identities()[0].pem)
            connection = await connect("127.0.0.1", port, config=config, timeout=10)
            assert connection.stream_credit == 128
            protocols = [connection.open_stream(Recorder)[1] for _ in range(5)]
            for protocol in protocols:
                protocol.transport.write(bytes(SIZE))
                protocol.transport.write_eof()
            while not all(protocol.lost for protocol in protocols):  # noqa: ASYNC110 - two ends' state, no event
                await asyncio.sleep(0.005)
            assert all(protocol.data == bytes(SIZE) for protocol in protocols)
            assert all(protocol.calls[-2:] == ["eof", "lost"] for protocol in protocols)
            connection.close()
            await connection.wait_closed()
    finally:
        server.close()
        await asyncio.sleep(0)
