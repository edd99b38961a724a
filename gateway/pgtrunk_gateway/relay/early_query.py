"""One query that runs before the handshake of its connection is complete, and can therefore be a replay.

    BEGIN READ ONLY -> the query, once Postgres has said that it is in that transaction -> back, which rolls back

Which queries are let in here is in :mod:`~pgtrunk_gateway.session.early`. It holds a backend by itself, so
that the session, which logs in, has none: nothing of what a session does with one can happen. It waits for no backend;
where none is free, or any step is not as it should be, it has not run, and its time comes after the handshake. The
client gets what it would get from a session; ReadyForQuery says that there is no transaction, since nobody can do
anything within this one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire.frontend import QUERY, query
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.parameters import apply, changed, profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.relay.admission import Admission

__all__ = ["EarlyQuery"]

_BEGIN: Final = query(b"BEGIN READ ONLY")
_IN_TRANSACTION: Final = ord("T")
_READY: Final = b"Z\0\0\0\5I"
_FOREVER: Final = 3600.0
"""Seconds for the way back where cancel_wait_timeout = 0."""


class EarlyQuery:
    """``data`` for the session that is admitted by ``admission``; ``write`` takes what its client gets."""

    def __init__(self, admission: Admission, data: bytes, write: Callable[[bytes], None]) -> None:
        self.profile = admission.profile
        self.relay = self._relay
        self._admission = admission
        self._data = data
        self._write = write
        self._backend: Backend | None = None
        self._has_begun = False
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def run(self) -> bool:
        """Runs it -> whether it has run. Raises the :class:`GatewayError` that ended it in its middle."""
        admission = self._admission
        backend = admission.pool.take(self)
        if backend is None:
            return False
        self._backend = backend
        replies = backend.replies
        replies.asker = None
        replies.unnamed = None
        settings = apply(backend.profile, self.profile)
        if settings:
            replies.push(owed.Applying(self.profile[-1] or ""))
        replies.push(owed.HIDDEN_QUERY)
        backend.transport.write((query(settings) if settings else b"") + _BEGIN)
        try:
            return await self._over
        finally:
            self._give_back()

    def cancel(self) -> None:
        """A cancel request has come for it."""
        if self._backend is not None and self._backend.replies.queue:
            self._admission.context.cancels.cancel(self._backend)

    # -- what its backend says -----------------------------------------------------------------------------------------

    def _relay(self, data: bytes) -> None:
        backend = self._backend
        if not self._has_begun or backend is None:
            return
        if backend.replies.settled:
            # Its end, which is ReadyForQuery.
            data = data[: -len(_READY)] + _READY
        self._write(data)

    def settled(self) -> None:
        """Nothing is owed any more."""
        backend = self._backend
        if backend is None or self._over.done():
            return
        replies = backend.replies
        if self._has_begun:
            self._admission.pool.stats.xact_count += 1
            self._tell_settings(backend)
            self._over.set_result(True)
        elif replies.hidden_error is not None or replies.status != _IN_TRANSACTION or backend.cancels:
            self._over.set_result(False)
        else:
            self._has_begun = True
            self._admission.context.counters.early_queries += 1
            replies.take_notes()
            replies.unnamed = None
            replies.push(owed.QUERY if self._data[0] == QUERY else owed.BATCH)
            self._admission.pool.stats.received += len(self._data)
            backend.transport.write(self._data)

    def _tell_settings(self, backend: Backend) -> None:
        """What a function has set, and the client been told of, is rolled back with all else."""
        replies = backend.replies
        for name, value in changed(profile(replies.parameters, replies.others), self.profile):
            if name in replies.shown:
                self._write(server.parameter_status(name, value))

    def backend_lost(self, error: GatewayError, told: bool) -> None:
        """The backend is gone."""
        self._backend = None
        if self._over.done():
            return
        if self._has_begun:
            self._over.set_exception(error)
        else:
            self._over.set_result(False)

    def _give_back(self) -> None:
        backend, self._backend = self._backend, None
        if backend is None:
            return
        terms, config = self._admission.terms, self._admission.context.config
        patience = config.cancel_wait_timeout or _FOREVER
        if backend.recover(open_batch=False, timeout=patience, reset=terms.reset_query):
            self._admission.context.cancels.cancel(backend)

    # -- backpressure --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The client does not read."""
        if self._backend is not None:
            self._backend.pause_reading()

    def resume(self) -> None:
        """It reads again."""
        if self._backend is not None:
            self._backend.resume_reading()

    def backend_full(self) -> None:
        """What it has to write is a few packets, which are written already."""

    def backend_drained(self) -> None: ...

    # -- it waits for no backend ---------------------------------------------------------------------------------------

    def offer(self, backend: Backend) -> bool:
        """Somebody else shall have it."""
        return False

    def refuse(self, error: GatewayError) -> None: ...

    def notify(self) -> None: ...
