"""Sees to it that a test leaves nothing behind on its loop: no task, no open transport."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest_asyncio


@pytest_asyncio.fixture(autouse=True)
async def no_leaks() -> AsyncIterator[None]:
    """Fails a test after which tasks are left or sockets are open. For each test of a folder whose conftest has it."""
    before = asyncio.all_tasks()
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks left: {left}"
    # A socket that nobody closed says so when it is collected, and warnings are errors.
    gc.collect()
