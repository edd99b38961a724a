"""What each signal asks for, and those that come once the end has begun."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, cast

import pytest

from pgtrunk_gateway.errors import ConfigError, GatewayError
from pgtrunk_gateway.notify import Notifier
from pgtrunk_gateway.signals import catch_signals, next_patience, serve_until_stopped
from pgtrunk_gateway.stopping import Patience, Stopping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgtrunk_gateway.gateway import Gateway

RUNNING, CLIENTS, TRANSACTIONS, NONE = Patience


@pytest.mark.parametrize(
    ("now", "signum", "after"),
    [
        (RUNNING, signal.SIGTERM, CLIENTS),
        (RUNNING, signal.SIGINT, TRANSACTIONS),
        (RUNNING, signal.SIGQUIT, NONE),
        (CLIENTS, signal.SIGTERM, NONE),
        (CLIENTS, signal.SIGINT, TRANSACTIONS),
        (CLIENTS, signal.SIGQUIT, NONE),
        (TRANSACTIONS, signal.SIGTERM, TRANSACTIONS),
        (TRANSACTIONS, signal.SIGINT, NONE),
        (TRANSACTIONS, signal.SIGQUIT, NONE),
    ],
)
def test_patience_never_grows_and_ends_when_asked_twice(now: Patience, signum: int, after: Patience) -> None:
    assert next_patience(now, signum) is after


class Operations:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.state = "active"
        self.asked: list[str] = []
        self.fault: Exception | None = None

    async def reload(self) -> None:
        self.asked.append("reload")
        if self.fault is not None:
            raise self.fault

    async def pause(self, database: str | None) -> None:
        assert database is None
        self.state = "paused"
        self.asked.append("pause")
        await asyncio.Event().wait()

    def resume(self, database: str | None) -> None:
        assert database is None
        self.state = "active"
        self.asked.append("resume")


class Served:
    """A gateway whose clients never leave."""

    def __init__(self) -> None:
        self.operations = Operations()
        self.stopping = Stopping(cast("Gateway", self))

    async def wait_for_clients(self) -> None:
        await asyncio.Event().wait()


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def gateway(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Served]:
    """One that is served, and ended at the end of the test."""
    caplog.set_level(logging.INFO, "pgtrunk_gateway")
    gateway = Served()
    signals = catch_signals()
    serving = asyncio.create_task(serve_until_stopped(cast("Gateway", gateway), signals, Notifier({})))
    yield gateway
    gateway.stopping.abandon()
    await asyncio.wait_for(serving, 30)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(os.getpid(), signum)
        await until_logged(caplog, f"got {signum.name}, which changes nothing")


async def test_a_second_signal_ends_what_the_first_waits_for(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await until_logged(caplog, "got SIGTERM, shutting down, waiting for all clients disconnect")
    assert gateway.stopping.begun
    os.kill(os.getpid(), signal.SIGTERM)
    await until_logged(caplog, "got SIGTERM while shutting down, fast exit")
    await asyncio.wait_for(gateway.stopping.over(), 30)


async def test_pause_and_resume(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    for signum, words in (
        (signal.SIGUSR2, "got SIGUSR2, but not paused/suspended"),
        (signal.SIGUSR1, "got SIGUSR1, pausing all activity"),
        (signal.SIGUSR1, "got SIGUSR1, but already paused/suspended"),
        (signal.SIGUSR2, "got SIGUSR2, continuing from PAUSE"),
    ):
        os.kill(os.getpid(), signum)
        await until_logged(caplog, words)
        await asyncio.sleep(0)
    assert gateway.operations.asked == ["pause", "resume"]


async def test_a_pause_that_somebody_forestalls_is_no_fault(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def pause(database: str | None) -> None:
        raise GatewayError("already suspended/paused")

    gateway.operations.pause = pause  # type: ignore[method-assign]
    os.kill(os.getpid(), signal.SIGUSR1)
    await until_logged(caplog, "got SIGUSR1, pausing all activity")


async def test_reload(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    await until_logged(caplog, "got SIGHUP, re-reading config")
    # One that fails is over with that, too.
    gateway.operations.fault = ConfigError("no")
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGUSR2)
    await until_logged(caplog, "got SIGUSR2")
    assert gateway.operations.asked.count("reload") >= 1


async def test_an_end_does_not_wait_for_a_reload(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    goes_on = asyncio.Event()
    gateway.operations.reload = goes_on.wait  # type: ignore[method-assign, assignment]
    os.kill(os.getpid(), signal.SIGHUP)
    await until_logged(caplog, "got SIGHUP, re-reading config")
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    await until_logged(caplog, "got SIGTERM, shutting down")
    assert gateway.stopping.begun
    # What is no end waits for its turn.
    assert "got SIGUSR2" not in caplog.text
    goes_on.set()
    await until_logged(caplog, "got SIGUSR2 while shutting down, ignoring")


async def test_resume_means_nothing_to_a_gateway_that_stops(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    gateway.stopping.ask(CLIENTS)
    os.kill(os.getpid(), signal.SIGUSR2)
    await until_logged(caplog, "got SIGUSR2 while shutting down, ignoring")


async def test_a_suspended_gateway_waits_for_nobody(gateway: Served, caplog: pytest.LogCaptureFixture) -> None:
    gateway.operations.state = "suspended"
    os.kill(os.getpid(), signal.SIGINT)
    await until_logged(caplog, "got SIGINT: suspend was in progress, going down immediately")
    await asyncio.wait_for(gateway.stopping.over(), 30)


async def test_a_fault_while_waiting_is_the_servers() -> None:
    class Broken(Served):
        async def wait_for_clients(self) -> None:
            raise RuntimeError("broken")

    broken = Broken()
    broken.stopping.ask(CLIENTS)
    with pytest.raises(RuntimeError, match="broken"):
        await serve_until_stopped(cast("Gateway", broken), asyncio.Queue(), Notifier({}))
