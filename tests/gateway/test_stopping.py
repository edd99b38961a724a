"""What each signal asks for, and those that come once the end has begun."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, cast

import pytest

from pgtrunk_gateway.stopping import Patience, catch_signals, next_patience, serve_until_stopped

if TYPE_CHECKING:
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


class Stopping:
    """A gateway whose clients never leave."""

    async def wait_for_clients(self) -> None:
        await asyncio.Event().wait()


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)


async def test_signals_that_come_while_it_ends_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgtrunk_gateway")
    serving = asyncio.create_task(serve_until_stopped(cast("Gateway", Stopping()), catch_signals()))
    # A signal before its handler is there would end the tests.
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await until_logged(caplog, "got SIGTERM, shutting down, waiting for clients")
    os.kill(os.getpid(), signal.SIGTERM)
    await until_logged(caplog, "got SIGTERM, shutting down now")
    await asyncio.wait_for(serving, 30)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        os.kill(os.getpid(), signum)
        await until_logged(caplog, f"got {signum.name}, which changes nothing")
