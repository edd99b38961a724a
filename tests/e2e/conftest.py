"""Fixtures of the end-to-end tests, the event loops that they run on, and what is shown of one that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

import pytest
import uvloop

from helpers.gateways import connect, pooled, start, way
from pgtrunk_gateway.demo.postgres import EmbeddedPostgresError

if TYPE_CHECKING:
    from helpers.site import Site

__all__ = ["connect", "pooled", "start", "way"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

_LOG_LINES: Final = 40


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: runs on uvloop and on asyncio's own event loop")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """uvloop, as a gateway in production has it; what is marked `both_loops` runs on asyncio's own loop too."""
    loops: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
    if item.get_closest_marker("both_loops"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


@pytest.fixture(autouse=True)
def _gateways_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Shows a gateway's log where a test fails; and fails it where an exception came up that nobody caught."""
    caplog.set_level(logging.INFO, "pgtrunk_gateway")
    yield
    faults = [record for phase in ("setup", "call", "teardown") for record in caplog.get_records(phase)]
    assert not [record.getMessage() for record in faults if record.levelno >= logging.ERROR]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    shared = item.funcargs.get("site") if isinstance(item, pytest.Function) else None
    if report.failed and shared is not None:
        # Behind the last test there is none any more.
        with contextlib.suppress(EmbeddedPostgresError):
            lines = cast("Site", shared).postgres.log.splitlines()[-_LOG_LINES:]
            report.sections.append(("the end of PostgreSQL's log", "\n".join(lines)))
    return report
