"""The welcome of a pool's clients: what the first login at the server reported, and those who wait for it.

Once it is known, clients log in without the server. Until then each of them waits, and hears what made that login fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgtrunk_gateway.errors import GatewayError

__all__ = ["Greeting"]


class Greeting:
    """One pool's."""

    def __init__(self) -> None:
        self.welcome: dict[str, str] | None = None
        """The parameters; None: not known yet."""
        self._count = 0
        self._since = 0.0
        self._arrival: asyncio.Future[dict[str, str]] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        """How many wait; those who have their answer do not, though they may not have got round to reading it."""
        return self._count if self._arrival is not None else 0

    @property
    def since(self) -> float:
        """Since when somebody has been waiting; infinity: nobody is."""
        return self._since if self.waiting else float("inf")

    async def wait(self, cause: Callable[[], None]) -> dict[str, str]:
        """The parameters, once the login that ``cause`` brings about has reported them.

        Raises the :class:`GatewayError` with which it failed. The caller sets the deadline.
        """
        if self._arrival is None:
            self._arrival = self._loop.create_future()
        if not self.waiting:
            self._since = self._loop.time()
        self._count += 1
        try:
            cause()
            return await asyncio.shield(self._arrival)
        finally:
            self._count -= 1

    def arrived(self, parameters: Mapping[str, str]) -> None:
        """The server has reported these."""
        self.welcome = dict(parameters)
        if self._arrival is not None:
            self._arrival.set_result(self.welcome)
            self._arrival = None

    def failed(self, error: GatewayError) -> None:
        """The login has failed with this."""
        if self._arrival is not None:
            self._arrival.set_exception(error)
            # Whoever waited may be gone by now; nobody else reads it.
            self._arrival.exception()
            self._arrival = None
