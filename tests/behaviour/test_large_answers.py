"""Answers of any length: rows, errors, notices, results of functions. None is held anywhere, and none is cut off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.portal_conversations import call
from behaviour.wire import wires
from helpers.memory import Peak
from pgtrunk.wire.backend import ready
from pgtrunk.wire.framing import messages
from pgtrunk.wire.frontend import SYNC_MESSAGE, bind, execute, parse, query

if TYPE_CHECKING:
    from behaviour.fronts import Front

SYNC: Final = SYNC_MESSAGE
REPEAT: Final = 1622
"""repeat(text, int)."""
ROOM: Final = 6 << 20
"""Octets by which a process between client and Postgres may grow."""
PATIENCE: Final = 1500.0
"""Seconds, on a slow machine that others use; pytest's own limit comes first, but for what is long."""
READY: Final = ready()
LARGE: Final = [
    12 << 20,
    pytest.param(200 << 20, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
]


def asked(size: int) -> dict[str, tuple[bytes, str]]:
    """What gives so much, by its name, with the kinds of the messages in the answer."""
    text = b"repeat('x', %d)" % size
    loud = b"do $$ begin raise notice '%', " + text + b"; end $$"
    return {
        "error": (query(b"select " + text + b"::int"), "EZ"),
        "error in a batch": (parse(b"", b"select " + text + b"::int") + bind(b"", b"") + execute() + SYNC, "1EZ"),
        "error of a known statement": (bind(b"", b"s", [b"%d" % size]) + execute() + SYNC, "EZ"),
        "notice": (query(loud), "NCZ"),
        "notice in a batch": (parse(b"", loud) + bind(b"", b"") + execute() + SYNC + query(b"select 1"), "12NCZTDCZ"),
        "function call": (call(REPEAT, b"x", b"%d" % size), "VZ"),
        "row": (query(b"select " + text), "TDCZ"),
    }


class Taker(asyncio.Protocol):
    """Takes what is much, in however many pieces, and joins it once."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._is_ready = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if b"".join(self._pieces[-2:]).endswith(READY):
            self._is_ready.set()

    async def taken(self, count: int) -> list[tuple[str, int]]:
        """So many messages: their types and lengths."""
        async with asyncio.timeout(PATIENCE):
            while True:
                await self._is_ready.wait()
                self._is_ready.clear()
                told = [(chr(kind), end - start) for kind, start, end in messages(b"".join(self._pieces))]
                if len(told) >= count:
                    self._pieces.clear()
                    return told


@pytest.mark.parametrize("size", LARGE, ids=["12 MB", "200 MB"])
@pytest.mark.parametrize("name", asked(0))
@pytest.mark.parametrize("through", ["direct", "tcp", "quic", "sidecar-unix"])
async def test_it_passes_in_parts(fronts: dict[str, Front], through: str, name: str, size: int) -> None:
    front = fronts[through]
    data, kinds = asked(size)[name]
    async with wires(front) as wire:
        session = await wire.log_in()
        assert await session.ask(parse(b"s", b"select repeat('x', $1)::int"), SYNC) == "1ZI"
        taker = Taker()
        session.transport.set_protocol(taker)
        # A statement of ours has to go ahead of it, or not.
        for _ in range(2):
            peak = Peak(front.between) if front.between else None
            session.send(data)
            told = await taker.taken(len(kinds))
            assert "".join(kind for kind, _ in told) == kinds
            assert sum(length for _, length in told) > size
            assert peak is None or peak.growth < ROOM
        session.transport.set_protocol(session)
        assert await session.ask(query(b"select 1")) == "TDCZI"
