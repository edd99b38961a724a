"""A pool whose server may be another one from now on: what its backends tell of theirs, and leaving those behind.

Which server it is, is in :mod:`~pgtrunk_gateway.pool.primary`. This is the pool's part, and a base of
:class:`~pgtrunk_gateway.pool.filling.Filling`: to listen to the backends, to open a connection for what its login says,
in the place of another, so that the limits hold, and to close what is at the wrong place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.pool.decisions import Connect
from pgtrunk_gateway.pool.primary import HostList
from pgtrunk_gateway.pool.standing import SOLE
from pgtrunk_gateway.pool.walsender import Walsender
from pgtrunk_gateway.session.replies import IDLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgtrunk_gateway.config.entries import Place
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.host import Host
    from pgtrunk_gateway.pool.limits import PoolLimits

__all__ = ["Following"]

_ASKS: Final = "read_only_sql_transaction"


class Following:
    """What follows is the pool's."""

    host: Host
    limits: PoolLimits
    backends: dict[int, Backend]
    _closed: bool
    _paused: bool
    _asks_anew = False
    """Whether the next backend is opened for what its login says of the server."""

    @property
    def count(self) -> int:
        """Backends, those being opened included."""
        raise NotImplementedError

    def maintain(self) -> None:
        """Opens what the minimum asks for, closes what is too old."""
        raise NotImplementedError

    def _give(self, backend: Backend, *, checked: bool = False) -> None:
        """A backend is free."""
        raise NotImplementedError

    def _give_if_open(self, backend: Backend, checked: bool = False) -> None:
        if backend.state is BackendState.OPEN:
            self._give(backend, checked=checked)

    def _connect(self, decision: Connect) -> None:
        raise NotImplementedError

    def _give_up_opening(self) -> None:
        raise NotImplementedError

    @property
    def is_mixed(self) -> bool:
        """Whether its backends may be at servers of different kinds, so that one's welcome says nothing of another."""
        return isinstance(self.host, HostList) and self.host.attrs not in SOLE

    # -- what backends say ---------------------------------------------------------------------------------------------

    def _listen_to(self, backend: Backend) -> None:
        """Before it is given to anybody."""
        if isinstance(self.host, HostList):
            backend.watch = self._heard

    def _heard(self, backend: Backend) -> None:
        if isinstance(self.host, HostList) and self.host.heard(backend):
            self._asks_anew = True
            backend.retire(_ASKS)

    def _checked(self, backend: Backend) -> None:
        """It has answered server_check_query: what it had to report came along."""
        self._heard(backend)
        self._give(backend, checked=True)

    def _left(self, backend: Backend, reason: str) -> None:
        """It has ended, and its place is free."""
        self.host.lost(backend, reason)
        if not self._asks_anew or self._closed or self._paused:
            return
        self._asks_anew = False
        if not self.limits.size or self.count < self.limits.size:
            self._connect(Connect(1, "is the server still what it was?", waited_for=False))

    # -- the wrong place -----------------------------------------------------------------------------------------------

    def desert(self, place: Place, reason: str, *, coming: bool = False) -> None:
        """See :meth:`Tenant.desert`."""
        if coming:
            self._give_up_opening()
        self._replace([each for each in self.backends.values() if each.target.place == place], reason)
        self.maintain()

    def _replace(self, backends: Iterable[Backend], reason: str, *, fast: bool = False) -> None:
        """Closes backends: idle ones now, leased ones at the end of their lease.

        ``fast`` (server_fast_close): now too, where a session in session mode is outside a transaction.
        """
        for backend in list(backends):
            backend.retire(reason)
            if backend.holder is None:
                if backend.state is not BackendState.RECOVERING:
                    backend.close(reason)
            elif isinstance(backend, Walsender) or (
                fast and backend.replies.settled and backend.replies.status == IDLE
            ):
                # There is no moment to wait for at which a walsender is free.
                backend.close(reason)
