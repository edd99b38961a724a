"""Follows a cluster that Patroni manages: asks its REST API, and tells host lists where its servers are.

One for each set of URLs, whatever number of databases name it, from the first on that is used. The nodes are asked in
turn: one that has answered is asked again, one that fails, or whose answer did not help, gives way to the next. As long
as nobody answers, or there is no leader, what was known last counts. When a list finds none of its servers to be what
it wants, Patroni is asked at once, and not only when the interval is over.

What Patroni says is where to look, not what is found there: each login still tells what its server is.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.pool.cluster import Member, NoCluster, places, read_cluster
from pgtrunk_gateway.pool.http import HttpError, get

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.pool.primary import HostList

__all__ = ["Patroni"]

log = logging.getLogger(__name__)

_SOONEST: Final = 0.1
"""Seconds between two rounds of questions, however many lists want to know."""


class Patroni:
    """The cluster behind ``urls``. ``config`` gives the settings in force (patroni_interval and its like)."""

    def __init__(self, urls: tuple[str, ...], config: Callable[[], Config]) -> None:
        self.urls = urls
        self.members: tuple[Member, ...] = ()
        """As of the last answer."""
        self._config = config
        self._lists: set[HostList] = set()
        self._asked = 0
        """Which of the URLs is asked."""
        self._trouble = ""
        self._context: ssl.SSLContext | None = None
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, servers: HostList) -> None:
        """``servers`` is told from now on."""
        self._lists.add(servers)
        servers.on_failure = self._look_again
        if self.members:
            self._tell(servers)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._ask_for_ever(), name=f"patroni {self.urls[0]}")

    def leave(self, servers: HostList) -> None:
        """``servers`` is not told any more; without any list, nobody is asked."""
        self._lists.discard(servers)
        servers.on_failure = None
        if not self._lists and self._task is not None:
            self._task.cancel()

    @property
    def unused(self) -> bool:
        return not self._lists

    async def ended(self) -> None:
        """Returns when nothing of it is left."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        if not self._hurry.is_set():
            # What this node knows has not helped.
            self._asked += 1
            self._hurry.set()

    async def _ask_for_ever(self) -> None:
        while True:
            self._hurry.clear()
            await self._ask_round()
            try:
                async with asyncio.timeout(self._config().patroni_interval):
                    await asyncio.sleep(_SOONEST)
                    await self._hurry.wait()
            except TimeoutError:
                pass

    async def _ask_round(self) -> None:
        trouble = []
        for _ in self.urls:
            url = self.urls[self._asked % len(self.urls)]
            try:
                members = await self._ask(url)
            except (HttpError, NoCluster, OSError, UnicodeError, ModuleNotFoundError) as error:
                trouble.append(f"{url}: {str(error) or type(error).__name__}")
                # Its files may have been replaced.
                self._context = None
                self._asked += 1
            else:
                self._note("")
                self._learn(members)
                return
        self._note("; ".join(trouble))

    async def _ask(self, url: str) -> tuple[Member, ...]:
        timeout = self._config().patroni_timeout
        try:
            async with asyncio.timeout(timeout):
                return read_cluster(await get(url.rstrip("/") + "/cluster", tls=self._tls))
        except TimeoutError:
            raise HttpError(f"no answer within patroni_timeout = {timeout:g} s") from None

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._config().patroni_ca_file)
        return self._context

    def _note(self, trouble: str) -> None:
        """Into the log, where it is news."""
        if trouble and trouble != self._trouble:
            log.warning("patroni cannot be asked: %s", trouble)
        elif self._trouble and not trouble:
            log.info("patroni answers again: %s", self.urls[self._asked % len(self.urls)])
        self._trouble = trouble

    def _learn(self, members: tuple[Member, ...]) -> None:
        if members == self.members:
            return
        self.members = members
        for servers in list(self._lists):
            self._tell(servers)

    def _tell(self, servers: HostList) -> None:
        wanted = places(self.members, servers.attrs)
        if wanted:
            # While there is no leader, the last one may still be it.
            servers.change(wanted)
