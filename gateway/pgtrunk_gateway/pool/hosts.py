"""The servers of a gateway, by what databases want of them: those that want the same share what is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.patroni import Patroni
from pgtrunk_gateway.pool.primary import HostList
from pgtrunk_gateway.pool.target import Wish

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig

__all__ = ["Hosts", "wish_of"]


def wish_of(database: DatabaseConfig) -> Wish:
    """What an entry of [databases] says about its servers."""
    # With one server there is nothing to spread.
    balance = database.load_balance_hosts if database.others or database.patroni else "round-robin"
    return Wish(database.places, database.session_attrs, balance, database.patroni)


class Hosts(dict[Wish, Host]):
    """Made when they are first asked for. ``config`` gives the settings in force."""

    def __init__(self, config: Callable[[], Config]) -> None:
        super().__init__()
        self._config = config
        self._patronis: dict[tuple[str, ...], Patroni] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, database: DatabaseConfig) -> Host:
        """The server of a database, or its list of servers."""
        wish = wish_of(database)
        host = self.get(wish)
        if host is None:
            host = self[wish] = self._make(wish)
        return host

    def tidy(self) -> None:
        """Forgets those that no pool is at any more."""
        for wish, host in list(self.items()):
            if not host.tenants:
                del self[wish]
                self._leave(wish, host)

    async def close(self) -> None:
        """Forgets all, and returns when nothing is left of them."""
        for wish, host in list(self.items()):
            del self[wish]
            self._leave(wish, host)
        await asyncio.gather(*self._ending)

    def _make(self, wish: Wish) -> Host:
        def retry() -> float:
            return self._config().server_login_retry

        if wish.is_simple:
            return Host(retry)
        servers = HostList(wish.places, wish.attrs, wish.balance, label=str(wish), retry=retry)
        if wish.patroni:
            patroni = self._patronis.get(wish.patroni)
            if patroni is None:
                patroni = self._patronis[wish.patroni] = Patroni(wish.patroni, self._config)
            patroni.follow(servers)
        return servers

    def _leave(self, wish: Wish, host: Host) -> None:
        patroni = self._patronis.get(wish.patroni)
        if patroni is None or not isinstance(host, HostList):
            return
        patroni.leave(host)
        if patroni.unused:
            del self._patronis[wish.patroni]
            task = asyncio.get_running_loop().create_task(patroni.ended(), name="end patroni")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
