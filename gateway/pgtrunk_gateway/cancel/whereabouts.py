"""The IP addresses of peers.

What comes from one of them is mostly what a client has shown there, and a wrong key among it is that client's. Were it
counted under the peer's address, one guesser would shut out all who come by that peer. So wrong keys from there are not
counted at all; nor are those of whoever else is on a peer's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.auth import subscriber

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Whereabouts"]

_REMEMBERED: Final = 60.0
"""Seconds for which names stand for the addresses that they had."""
_LOOKUP: Final = 5.0
"""Seconds for all names to be looked up; what takes longer is not known."""


class Whereabouts:
    """Those of the peers with these names and addresses; what is a path, or no name at all, has none."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = tuple(dict.fromkeys(host for host in hosts if not host.startswith(("/", "@"))))
        self._known: frozenset[Hashable] = frozenset()
        self._until = float("-inf")
        self._looking_up = asyncio.Lock()

    async def has(self, address: str | None) -> bool:
        """Whether this may be the address of a peer. Names are looked up where the last time was a while ago."""
        key = subscriber(address)
        if key is None or not self._hosts:
            return False
        async with self._looking_up:
            if asyncio.get_running_loop().time() >= self._until:
                await self._look_up()
        return key in self._known

    async def _look_up(self) -> None:
        loop = asyncio.get_running_loop()
        found: set[Hashable] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOKUP):
                for host in self._hosts:
                    # A name with an empty or an overlong label is a UnicodeError.
                    with contextlib.suppress(OSError, UnicodeError):
                        infos = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                        found |= {subscriber(str(address[0])) for *_, address in infos}
        self._known = frozenset(found - {None})
        self._until = loop.time() + _REMEMBERED
