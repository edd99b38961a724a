"""How a session gives its backend back: free for the next one, to be reset first, or amid what it was at.

Between :class:`~pgtrunk_gateway.relay.pausing.Pausing` and :class:`~pgtrunk_gateway.relay.lifecycle.Lifecycle`, whose
effects RELEASE, FINISH and RECOVER these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.relay.pausing import FULL, Pausing

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend

__all__ = ["Returning"]

_FOREVER: Final = 3600.0
"""cancel_wait_timeout = 0 switches it off; but no wait is without end."""


class Returning(Pausing):
    """The end of a lease, and what is kept beyond it."""

    _request: bytes

    def __init__(self) -> None:
        super().__init__()
        self._keeping: str | None = None
        """What the backend that it keeps has to be reset with, "" for nothing; None: it keeps none."""

    def _release(self) -> None:
        backend, self.backend = self.backend, None
        assert backend is not None
        if self._client_full:
            backend.resume_reading()
        if self._paused & FULL:
            self._resume(FULL)
        reset = self._take_reset(backend)
        if self.requests.keeps:
            self.requests.keep(False, tracked=self.terms.tracked)
            backend.replies.notifies = False
        if reset is None:
            backend.release()
        else:
            backend.reset(reset, self._patience)

    def _take_reset(self, backend: Backend) -> str | None:
        """What ``backend``, which is given back, has to be reset with; None: it need not be."""
        keeping, self._keeping = self._keeping, None
        return self.terms.reset_query if keeping is None else keeping or None

    @property
    def _patience(self) -> float:
        """Seconds for a backend to be fit again for the next session."""
        return self.context.config.cancel_wait_timeout or _FOREVER

    def _keep(self, backend: Backend) -> None:
        """A lease begins under particular terms: in session mode it lasts, and what the session leaves is undone."""
        keeps = self.terms.keeps
        self._keeping = (self.terms.reset_query or "") if keeps else None
        backend.replies.notifies = keeps
        self.requests.keep(keeps, tracked=self.terms.tracked)

    def _give_up(self, *, cancel: bool) -> None:
        backend, self.backend = self.backend, None
        assert backend is not None
        if self._inbound.rest and not self._request:
            reason, unfinished = "client left in the middle of a message", self.requests.unfinished
            if backend.abandon(reason, unfinished=unfinished, timeout=self._patience):
                self.context.cancels.cancel(backend)
            return
        reset = self._take_reset(backend)
        running = backend.recover(open_batch=self.requests.open, timeout=self._patience, reset=reset)
        if running and cancel:
            self.context.cancels.cancel(backend)

    def _finish(self) -> None:
        self._give_up(cancel=False)

    def _recover(self) -> None:
        self._give_up(cancel=True)
