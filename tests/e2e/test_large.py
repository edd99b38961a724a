"""Messages that are far larger than any buffer, in both directions and beside each other."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.gateways import Connect, Start, Way

SIZE = 10 << 20


async def test_large_parameters_and_results(connect: Connect) -> None:
    session = await connect()
    value = bytes(range(256)) * (SIZE // 256)
    assert await session.fetchval("SELECT sha256($1)", value) == hashlib.sha256(value).digest()
    assert await session.fetchval("SELECT repeat('0123456789abcdef', $1)", SIZE // 16) == "0123456789abcdef" * (
        SIZE // 16
    )
    # Both at once: neither side may wait for the other to read.
    assert await session.fetchval("SELECT $1::bytea", value) == value
    assert await session.fetchval("SELECT 1") == 1


async def test_a_large_text_in_the_simple_protocol(connect: Connect) -> None:
    session = await connect()
    assert await session.execute(f"SELECT length('{'x' * SIZE}')") == "SELECT 1"
    assert await session.fetchval("SELECT 1") == 1


async def test_a_large_statement(connect: Connect) -> None:
    session = await connect()
    text = f"SELECT length('{'y' * (1 << 20)}') + $1::int"
    assert await session.fetchval(text, 1) == (1 << 20) + 1
    assert await session.fetchval(text, 2) == (1 << 20) + 2


async def test_an_error_in_the_middle_of_a_large_result(connect: Connect) -> None:
    session = await connect()
    with pytest.raises(Exception, match="division by zero"):
        await session.fetch("SELECT repeat('x', 100000), 1 / (n - 200) FROM generate_series(1, 300) n")
    assert await session.fetchval("SELECT 1") == 1


async def test_large_things_beside_each_other(start: Start, pooled: Way) -> None:
    gateway = await start(default_pool_size=2)
    sessions = [await gateway.connect(pooled) for _ in range(5)]

    async def use(at: int) -> None:
        value = bytes([at]) * (SIZE // 10)
        for _ in range(2):
            async with sessions[at].transaction():
                assert await sessions[at].fetchval("SELECT $1::bytea", value) == value
                assert await sessions[at].fetchval("SELECT $1::int", at) == at

    await asyncio.gather(*(use(at) for at in range(5)))
