"""How patiently a gateway is being stopped, whoever asked for it: a signal, or the console's SHUTDOWN.

    CLIENTS       no new sessions; wait until all clients have left (at most shutdown_timeout)
    TRANSACTIONS  no new sessions; wait until no transaction runs (at most shutdown_timeout)
    NONE          now

Patience only ever shrinks: who asks for less than before is obeyed, who asks for more is not.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.gateway import Gateway

__all__ = ["Patience", "Stopping"]


class Patience(enum.IntEnum):
    """What a stop waits for, from most to least."""

    RUNNING = 0
    CLIENTS = 1
    TRANSACTIONS = 2
    NONE = 3


class Stopping:
    """The end of one gateway, from the first request for it until there is nothing left to wait for."""

    def __init__(self, gateway: Gateway) -> None:
        self.patience = Patience.RUNNING
        self._gateway = gateway
        self._waiting: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether anybody has asked for the end."""
        return self.patience is not Patience.RUNNING

    def ask(self, patience: Patience) -> None:
        """From now on the end waits for ``patience`` at most."""
        if patience <= self.patience:
            return
        self.patience = patience
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if patience is Patience.NONE:
            self._over.set()
        else:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(patience), name="stopping")

    async def over(self) -> None:
        """Returns when there is nothing left to wait for: the gateway is to be closed now."""
        await self._over.wait()
        if self._waiting is not None:
            # It has ended; what went wrong in it is for whoever runs the gateway.
            await self._waiting

    def abandon(self) -> None:
        """The gateway is being closed: nothing is waited for any more."""
        self.ask(Patience.NONE)

    async def _wait(self, patience: Patience) -> None:
        try:
            if patience is Patience.CLIENTS:
                await self._gateway.wait_for_clients()
            else:
                await self._gateway.wait_for_transactions()
        finally:
            if asyncio.current_task() is self._waiting:
                self._over.set()
