"""Which addresses are those of peers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from pgtrunk_gateway.cancel.whereabouts import Whereabouts


@pytest.mark.parametrize(
    ("host", "address", "is_there"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::2", True),  # one /64, one guesser
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", None, False),
        ("/run/pgtrunk", "192.0.2.1", False),
        ("@pgtrunk", "192.0.2.1", False),
    ],
)
async def test_addresses(host: str, address: str | None, is_there: bool) -> None:
    assert await Whereabouts([host, host]).has(address) is is_there


async def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"one": ["192.0.2.1", "192.0.2.2"], "two": ["2001:db8::1"]}
    asked: list[str] = []

    async def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        await asyncio.sleep(0.001)
        if host not in names:
            raise socket.gaierror("unknown")
        return [(0, 0, 0, "", (address, 0)) for address in names[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    peers = Whereabouts(["one", "gone", "two"])
    # All that come meanwhile wait for one answer, which is good for a while.
    found = await asyncio.gather(*(peers.has(each) for each in ("192.0.2.2", "2001:db8::9", "192.0.2.3")))
    assert found == [True, True, False]
    assert asked == ["one", "gone", "two"]


async def test_nobody() -> None:
    assert not await Whereabouts().has("192.0.2.1")
