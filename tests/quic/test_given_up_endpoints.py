"""A gateway's UDP socket whose opening is cancelled. uvloop waits for ever to be closed where one is left open."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from pgtrunk_gateway.quic.udp import AddressEndpoint, UdpCounters, open_endpoint


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("turn", range(4))
def test_nothing_is_left_of_it(make_loop: Any, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.BaseTransport] = []
    connection_made = AddressEndpoint.connection_made

    def note(endpoint: AddressEndpoint, transport: asyncio.BaseTransport) -> None:
        made.append(transport)
        connection_made(endpoint, transport)

    monkeypatch.setattr(AddressEndpoint, "connection_made", note)
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(_give_up(turn, made))


async def _give_up(turn: int, made: list[asyncio.BaseTransport]) -> bool:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    opening = asyncio.create_task(open_endpoint(sock, lambda _data, _path: None, UdpCounters()))
    for _ in range(turn):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    if opening.cancelled():
        sock.close()
    else:
        opening.result().close()
    is_closed = all(transport.is_closing() for transport in made)
    for transport in made:
        transport.close()
    await asyncio.sleep(0.01)
    return is_closed
