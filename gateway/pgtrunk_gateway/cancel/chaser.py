"""Ends what backends run for clients that are gone.

Postgres forgets a request that arrives before the query does. A client that cancels may ask again; here nobody is left
who would, so it is asked until the query has ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.cancel.carrier import is_over

if TYPE_CHECKING:
    from pgtrunk_gateway.cancel.carrier import Carrier
    from pgtrunk_gateway.cancel.outcome import Outcome
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["Chaser"]

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two requests to end the same query."""


class Chaser:
    """The gateway's own cancels, which ``carrier`` carries."""

    def __init__(self, carrier: Carrier) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        """Those under way."""
        self._carrier = carrier

    def start(self, backend: Backend) -> None:
        """Sees to it in the background that ``backend`` does not go on with what was sent to it so far."""
        chase = self._chase(backend, backend.lease, backend.replies.batch, self._carrier.start(backend))
        task = asyncio.get_running_loop().create_task(chase, name=f"end S-{backend.id}")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _chase(self, backend: Backend, lease: int, batch: int, request: asyncio.Task[Outcome]) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.wait([request])
            await asyncio.sleep(pause)
            # A further batch is the ROLLBACK that comes after the end of what ran.
            if is_over(backend, lease) or backend.replies.batch != batch:
                return
            request = self._carrier.start(backend)
            pause = min(2 * pause, _LONGEST_PAUSE)
