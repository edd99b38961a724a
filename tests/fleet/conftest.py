"""Fixtures of the fleet's tests, and the event loops that they run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from helpers.fleets import start_fleet
from helpers.gateways import start

__all__ = ["start", "start_fleet"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: runs on uvloop and on asyncio's own event loop")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as a fleet in production has it; what is marked `both_loops` runs on asyncio's own loop too."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.get_closest_marker("both_loops"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops
