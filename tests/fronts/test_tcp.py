"""The TCP front's options: what accepted sockets inherit, also after a reload, and who may share the port."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pgtrunk_gateway.config import Config
from pgtrunk_gateway.fronts.tcp import TcpFront, tcp_tuner

if TYPE_CHECKING:
    from pgtrunk_gateway.config import Loaded
    from pgtrunk_gateway.relay.session import Session


class Accepted(asyncio.Protocol):
    """The sockets that were accepted."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[socket.socket] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.arrived.put_nowait(transport.get_extra_info("socket"))


async def accepted_socket(front: TcpFront, accepted: Accepted) -> tuple[int, int, int]:
    """SO_KEEPALIVE, TCP_KEEPIDLE and TCP_USER_TIMEOUT of the next who comes."""
    _, writer = await asyncio.open_connection("127.0.0.1", front.port)
    sock = await accepted.arrived.get()
    values = (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    )
    writer.close()
    await writer.wait_closed()
    return values


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
async def test_who_comes_after_a_reload_has_its_options() -> None:
    config = Config(tcp_keepidle=61, tcp_user_timeout=5000)
    accepted = Accepted()
    front = await TcpFront.listen(
        ["127.0.0.1"], 0, backlog=5, tune=tcp_tuner(lambda: config), session=lambda _: cast("Session", accepted)
    )
    try:
        assert await accepted_socket(front, accepted) == (1, 61, 5000)
        config = replace(config, tcp_keepidle=62, tcp_user_timeout=6000)
        assert await accepted_socket(front, accepted) == (1, 61, 5000)
        front.prepare(cast("Loaded", None))()
        assert await accepted_socket(front, accepted) == (1, 62, 6000)
        config = replace(config, tcp_keepalive=False)
        front.prepare(cast("Loaded", None))()
        assert (await accepted_socket(front, accepted))[0] == 0
    finally:
        await front.close()


async def test_a_port_is_shared_only_where_both_say_so() -> None:
    async def listen(port: int, *, shared: bool) -> TcpFront:
        return await TcpFront.listen(
            ["127.0.0.1"],
            port,
            backlog=5,
            shared=shared,
            tune=tcp_tuner(Config),
            session=lambda _: cast("Session", Accepted()),
        )

    one = await listen(0, shared=True)
    try:
        other = await listen(one.port, shared=True)
        await other.close()
        with pytest.raises(OSError, match="in use"):
            await listen(one.port, shared=False)
    finally:
        await one.close()


async def test_where_one_address_is_not_to_be_had_no_other_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the loop would take the next socket of the same number for the one that it listened on."""
    loop = asyncio.get_running_loop()
    create, made = loop.create_server, 0

    async def create_server(*arguments: Any, **settings: Any) -> asyncio.Server:
        nonlocal made
        made += 1
        if made == 2:
            raise OSError(errno.EADDRINUSE, "in use")
        return await create(*arguments, **settings)

    monkeypatch.setattr(loop, "create_server", create_server)
    with pytest.raises(OSError, match="in use"):
        await TcpFront.listen(
            ["127.0.0.1", "127.0.0.2"],
            0,
            backlog=5,
            tune=tcp_tuner(Config),
            session=lambda _: cast("Session", Accepted()),
        )
    sockets = socket.socketpair()
    readable = [asyncio.Event() for _ in sockets]
    for sock, event in zip(sockets, readable, strict=True):
        loop.add_reader(sock, event.set)
    for sock in sockets:
        sock.send(b"x")
    async with asyncio.timeout(10):
        for event in readable:
            await event.wait()
    for sock in sockets:
        loop.remove_reader(sock)
        sock.close()
