"""Names become addresses, and their families take turns."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from pgtrunk.errors import GatewayUnreachable
from pgtrunk.quic.resolving import interleaved, resolve


def info(host: str) -> Any:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, socket.SOCK_DGRAM, socket.IPPROTO_UDP, "", (host, 1)


@pytest.mark.parametrize(
    ("found", "turns"),
    [
        ("", ""),
        ("1.1.1.1 1.1.1.2", "1.1.1.1 1.1.1.2"),
        ("::1 ::2 ::3 1.1.1.1", "::1 1.1.1.1 ::2 ::3"),
        ("1.1.1.1 1.1.1.2 ::1 ::2", "1.1.1.1 ::1 1.1.1.2 ::2"),
        ("1.1.1.1 ::1 ::2", "1.1.1.1 ::1 ::2"),
    ],
)
def test_families_take_turns(found: str, turns: str) -> None:
    assert interleaved([info(host) for host in found.split()]) == [info(host) for host in turns.split()]


async def test_what_is_an_address_asks_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    for host in ("127.0.0.1", "::1"):
        found = await resolve(host, 6432, 0.0, 1.0)
        assert [address[4][:2] for address in found] == [(host, 6432)]


async def test_each_address_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    async def twice(*_: Any, **__: Any) -> Any:
        return [info("1.1.1.1"), info("1.1.1.2"), info("1.1.1.1")]

    monkeypatch.setattr(loop, "getaddrinfo", twice)
    assert await resolve("gw.test", 1, loop.time() + 10, 10.0) == [info("1.1.1.1"), info("1.1.1.2")]


async def test_a_name_that_no_resolver_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(GatewayUnreachable, match="cannot be resolved"):
        await resolve("a" * 64 + ".test", 1, loop.time() + 10, 10.0)
