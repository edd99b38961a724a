"""First packets that no driver of today sends: what is said to them is what Postgres says, and then nobody waits."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.fronts import FRONTS
from behaviour.wire import wires
from helpers.site import DATABASE, USER
from pgtrunk.wire.backend import parse_error
from pgtrunk.wire.framing import HEADER_SIZE, messages

if TYPE_CHECKING:
    from behaviour.fronts import Front


def packet(code: int, body: bytes = b"") -> bytes:
    return struct.pack("!ii", 8 + len(body), code) + body


NAMES: Final = b"user\0" + USER.encode() + b"\0database\0" + DATABASE.encode() + b"\0"
CANCEL: Final = 80877102
V3: Final = 3 << 16

LONG: Final = 10_001
"""One octet more than Postgres, and the gateway, takes."""

REFUSED: Final = {
    "version 2": packet(2 << 16, DATABASE.encode().ljust(64, b"\0") + USER.encode().ljust(32, b"\0") + bytes(192)),
    "version 1": packet(1 << 16, NAMES + b"\0"),
    "version 0": packet(0, NAMES + b"\0"),
    "version 4": packet(4 << 16, NAMES + b"\0"),
    "version -1": packet(-1, NAMES + b"\0"),
    "nobody": packet(V3, b"\0"),
    "nothing": packet(V3),
    "a user without name": packet(V3, b"user\0\0\0"),
    "no end": packet(V3, NAMES),
    "no end of a text": packet(V3, b"user\0app"),
    "an end too early": packet(V3, NAMES + b"\0more\0"),
    "a name without value": packet(V3, NAMES + b"name\0\0"),
}
"""Postgres says why. The gateway gives the same SQLSTATE, in words of its own, and always in the format of version 3:
that of version 2 is read by nothing that is left.
"""
CUT_OFF: Final = {
    "length 0": struct.pack("!ii", 0, V3),
    "length 7": struct.pack("!ii", 7, V3),
    "length -1": struct.pack("!ii", -1, V3),
    "too long": struct.pack("!ii", LONG, V3) + NAMES.ljust(LONG - 8, b"\0"),
    "length 2 GB": struct.pack("!ii", 0x7FFFFFFF, V3) + NAMES,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a query": b"Q\0\0\0\x0dselect 1\0",
    "zeros": bytes(100),
    "ones": b"\xff" * 100,
    "much": b"x" * 100_000,
    "a cancel without secret": packet(CANCEL, struct.pack("!i", 1)),
    "a cancel that is too long": packet(CANCEL, struct.pack("!i", 1) + bytes(300)),
}
"""Postgres closes the connection without a word; the gateway says what is wrong, as a violation of the protocol."""
NEGOTIATED: Final = {
    "3.0": packet(V3, NAMES + b"\0"),
    "3.1": packet(V3 | 1, NAMES + b"\0"),
    "3.2": packet(V3 | 2, NAMES + b"\0"),
    "3.3": packet(V3 | 3, NAMES + b"\0"),
    "3.9999 with an option": packet(V3 | 9999, NAMES + b"_pq_.test_protocol_negotiation\0\0\0"),
    "3.0 with options": packet(V3, b"_pq_.a\0on\0" + NAMES + b"_pq_.b\0\0\0"),
    "3.2 with an option": packet(V3 | 2, b"_pq_.a\0on\0" + NAMES + b"\0"),
}
"""Postgres says what it does not speak, and the login goes on."""
UNANSWERED: Final = {
    "a cancel for nobody": packet(CANCEL, struct.pack("!ii", 1, 2)),
    "a long cancel for nobody": packet(CANCEL, struct.pack("!i", 1) + bytes(256)),
}
"""Nobody says anything."""
ALWAYS: Final = ("tcp", "unix", "quic", "sidecar-unix")
LATER: Final = tuple(front for front in FRONTS if front not in ("direct", *ALWAYS))
THROUGH: Final = [*ALWAYS, *(pytest.param(front, marks=pytest.mark.long) for front in LATER)]


async def answer(front: Front, data: bytes) -> bytes:
    """All that is said before the connection is closed from the other side."""
    async with wires(front) as wire:
        session = await wire.open()
        session.send(data)
        async with asyncio.timeout(20):
            await session.is_lost.wait()
        return session.octets


def reason(octets: bytes) -> tuple[str, str]:
    """Severity and SQLSTATE of the only message."""
    ((kind, start, end),) = messages(octets)
    assert (chr(kind), end) == ("E", len(octets))
    fields = parse_error(octets[start + HEADER_SIZE :])
    return fields.severity, fields.sqlstate


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("through", THROUGH)
async def test_postgres_and_the_gateway_refuse_alike(fronts: dict[str, Front], through: str, name: str) -> None:
    own = await answer(fronts["direct"], REFUSED[name])
    told = await answer(fronts[through], REFUSED[name])
    if own.startswith(b"EFATAL:  unsupported frontend protocol"):
        assert reason(told) == ("FATAL", "0A000")
    else:
        assert reason(told) == reason(own)


@pytest.mark.parametrize("name", CUT_OFF)
@pytest.mark.parametrize("through", THROUGH)
async def test_nonsense_is_told_what_it_is(fronts: dict[str, Front], through: str, name: str) -> None:
    assert reason(await answer(fronts[through], CUT_OFF[name])) == ("FATAL", "08P01")


@pytest.mark.parametrize("name", UNANSWERED)
@pytest.mark.parametrize("through", THROUGH)
async def test_who_cancels_is_told_nothing(fronts: dict[str, Front], through: str, name: str) -> None:
    assert await answer(fronts["direct"], UNANSWERED[name]) == b""
    assert await answer(fronts[through], UNANSWERED[name]) == b""


async def negotiation(front: Front, data: bytes) -> list[bytes]:
    """What is said of the protocol before somebody has to log in."""
    async with wires(front) as wire:
        session = await wire.open()
        session.reads_messages = True
        session.send(data)
        *told, last = await session.until("RE")
        assert last.kind == "R"
        assert all(message.kind == "v" for message in told)
        return [message.body for message in told]


@pytest.mark.parametrize("name", NEGOTIATED)
@pytest.mark.parametrize("through", THROUGH)
async def test_the_protocol_is_negotiated_alike(fronts: dict[str, Front], through: str, name: str) -> None:
    own = await negotiation(fronts["direct"], NEGOTIATED[name])
    assert await negotiation(fronts[through], NEGOTIATED[name]) == own
