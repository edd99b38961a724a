"""Fixtures of the end-to-end tests, and the event loops that they run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from helpers.gateways import connect, pooled, site, start, way

__all__ = ["connect", "pooled", "site", "start", "way"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """uvloop, as a gateway in production has it; modules marked `both_loops` run on asyncio's own loop too."""
    loops: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
    if item.get_closest_marker("both_loops"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: runs on uvloop and on asyncio's own event loop")
