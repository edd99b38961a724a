"""The end of a fleet: all its workers', whoever has asked for it. What the patience means is what it means for one
gateway (:mod:`~pgtrunk_gateway.stopping`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.post import Post

__all__ = ["Ending"]


class Ending:
    """Of the workers in ``posts``. ``drain`` is called first: no new clients from then on."""

    def __init__(self, posts: Sequence[Post], drain: Callable[[], None]) -> None:
        self.patience = Patience.RUNNING
        self._posts = posts
        self._drain = drain
        self._asked = asyncio.Event()
        self._now = asyncio.Event()
        self.others: Callable[[], Awaitable[object]] | None = None
        """Returns when nobody is left that needs this supervisor though he is none of its workers."""

    @property
    def begun(self) -> bool:
        """Whether anybody has asked for it."""
        return self.patience is not Patience.RUNNING

    def ask(self, patience: Patience) -> None:
        """From now on the end waits for ``patience`` at most; see :class:`~pgtrunk_gateway.stopping.Patience`."""
        if patience <= self.patience:
            return
        self.patience = patience
        # Before the workers know it: none of them shall refuse who could have come to the next gateway.
        self._drain()
        for post in self._posts:
            post.stop(patience)
        self._asked.set()
        if patience is Patience.NONE:
            self._now.set()

    async def over(self) -> None:
        """Returns when all workers have ended, and those fleets that this one decides for."""
        await self._asked.wait()
        await asyncio.gather(*(post.over() for post in self._posts))
        if self.others is not None and self.patience is not Patience.NONE:
            # A second signal need not wait for them: they notice that nobody decides for them any more.
            waits = [asyncio.ensure_future(self.others()), asyncio.ensure_future(self._now.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
