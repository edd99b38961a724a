"""The connections of one pool that are being opened: a task each, and nothing is left of one that is given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import BackendUnavailable, GatewayError
from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner, log_in
from pgtrunk_gateway.pool.primary import HostList

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Opening"]

log = logging.getLogger(__name__)


class Opening:
    """``opened`` and ``failed`` are told how each connection ended; ``failed`` also when it was begun, and its task."""

    def __init__(
        self,
        name: str,
        *,
        derive: Deriver,
        tune: SocketTuner,
        opened: Callable[[Opened], None],
        failed: Callable[[GatewayError, float, object], None],
    ) -> None:
        self._name = name
        self._derive = derive
        self._tune = tune
        self._opened = opened
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], Host] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, target: Target, host: Host, timeout: float) -> None:
        """Opens one, within ``timeout`` seconds (0: no limit). It counts from now on."""
        task = self._loop.create_task(self._open(target, host, timeout), name=f"open {self._name}")
        self._tasks[task] = host
        task.add_done_callback(partial(self._ended, self._loop.time()))
        host.begins(task)

    def give_up(self) -> int:
        """Ends all of them -> how many those were. None of them is reported any more."""
        tasks, self._tasks = self._tasks, {}
        for task, host in tasks.items():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()
            host.abandoned(task)
        return len(tasks)

    async def ended(self) -> None:
        """Returns when what was given up has left nothing."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _ended(self, began: float, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (fault := task.exception()) is None:
            return
        # A fault of ours. Who waits for this connection shall wait no longer than for any other that fails.
        log.error("%s: a connection to the server could not be opened", self._name, exc_info=fault)
        if self._tasks.pop(task, None) is not None:
            self._failed(BackendUnavailable("internal error"), began, task)

    async def _open(self, target: Target, host: Host, timeout: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        began = self._loop.time()
        outcome: Opened | GatewayError
        try:
            outcome = await self._log_in(target, host, timeout)
        except GatewayError as error:
            outcome = error
        if self._tasks.pop(task, None) is None:
            # It was given up, and ended all the same.
            if isinstance(outcome, Opened):
                outcome.transport.abort()
            return
        if isinstance(outcome, Opened):
            # Only then do all others look again, those of this pool with one backend more.
            self._opened(outcome)
            host.succeeded()
        else:
            self._failed(outcome, began, task)

    async def _log_in(self, target: Target, host: Host, timeout: float) -> Opened:
        if isinstance(host, HostList):
            return await host.find(target, name=self._name, timeout=timeout, derive=self._derive, tune=self._tune)
        return await log_in(target, timeout=timeout, derive=self._derive, tune=self._tune, host=host)
