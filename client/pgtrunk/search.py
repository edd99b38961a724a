"""The addresses of one dial, as they become known: all names are resolved at once.

The dial begins as soon as the best gateway's name is resolved, or a moment after any other's; the rest join when they
are. A name that cannot be resolved any more is tried at the addresses that it had: a name server that is away must not
take along what it had named.
"""

from __future__ import annotations

import asyncio
import logging
from random import random
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.errors import GatewayUnreachable, TrunkError
from pgtrunk.gateways import Candidate, Gateways, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from pgtrunk.address import Address
    from pgtrunk.quic.sockets import AddressInfo

    Resolver: TypeAlias = Callable[[str, int, float, float], Coroutine[Any, Any, Sequence[AddressInfo]]]
    """Host, port, deadline, and the timeout that it comes from. Raises `GatewayUnreachable`."""

__all__ = ["Search", "resolve"]

logger = logging.getLogger("pgtrunk")

RESOLUTION_DELAY: Final = 0.05
"""Seconds that the best gateway's name may take longer than another's (RFC 8305 section 8)."""


class Search:
    """Looks for the addresses of gateways; with ``only``, for that one."""

    def __init__(self, gateways: Gateways, resolver: Resolver, *, timeout: float, only: Candidate | None) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        """Those that look for some."""
        self.errors: list[TrunkError] = []
        """Why there are none of a gateway."""
        self._gateways = gateways
        self._resolver = resolver
        self._timeout = timeout
        self._only = only
        self._found: dict[Candidate, None] = {}

    def begin(self, places: Mapping[Address, Address | None], deadline: float) -> None:
        """Looks for the addresses of all these gateways, the best first, each at another place where one is given."""
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self._resolve(gateway, at, deadline), name=f"pgtrunk resolve {at or gateway}")
            for gateway, at in places.items()
        ]

    async def wait_first(self) -> None:
        """Waits until there is something to begin with."""
        left: set[asyncio.Task[None]] = set(self.tasks)
        while left and not self._found:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what it raises is a fault
        if not self.tasks[0].done():
            await asyncio.wait(self.tasks[:1], timeout=RESOLUTION_DELAY)

    def next(self, counts: Mapping[Candidate, int]) -> Step | None:
        """The best of those that are left."""
        plan = self._gateways.plan(self._found, counts, asyncio.get_running_loop().time())
        if not plan:
            return None
        del self._found[plan[0].candidate]
        return plan[0]

    def end(self) -> None:
        """Looks no further. A resolver's thread cannot be stopped, and nobody waits for it."""
        for task in self.tasks:
            task.cancel()

    async def _resolve(self, gateway: Address, at: Address | None, deadline: float) -> None:
        place = at or gateway
        try:
            infos = await self._resolver(place.host, place.port, deadline, self._timeout)
        except GatewayUnreachable as exc:
            now = asyncio.get_running_loop().time()
            known = self._gateways.unresolved(gateway, exc, now, random()) if at is None else ()
            if known:
                logger.info("%s: its last known addresses are used: %s", gateway, exc)
                self._add(known)
            else:
                self.errors.append(exc)
            return
        candidates = [Candidate(gateway, info[0], info[4]) for info in infos]
        if at is None:
            self._gateways.resolved(gateway, candidates)
        self._add(candidates)

    def _add(self, candidates: Iterable[Candidate]) -> None:
        self._found.update(dict.fromkeys(each for each in candidates if self._only in (None, each)))


async def resolve(host: str, port: int, deadline: float, timeout: float) -> Sequence[AddressInfo]:
    """Asks the system's resolver."""
    # Imported here, not above: `import pgtrunk` alone stays quick.
    from pgtrunk.quic import resolving

    return await resolving.resolve(host, port, deadline, timeout)
