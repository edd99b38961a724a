"""`Sidecar`: the local listeners, the sessions that came in by them, and the trunk that carries them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from pgtrunk.closing import close_each
from pgtrunk.sidecar.listening import listen
from pgtrunk.sidecar.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgtrunk.manager import StreamManager
    from pgtrunk.sidecar.endpoint import Endpoint
    from pgtrunk.sidecar.listening import Listener
    from pgtrunk.trunk import Opened
    from pgtrunk.wire.startup import CancelRequest

__all__ = ["Sidecar"]

logger = logging.getLogger("pgtrunk.sidecar")

FAREWELL_TIMEOUT = 1.0
"""Seconds that drivers have, when a sidecar closes, to take the error and close too."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Sidecar:
    """Accepts drivers at local endpoints, and gives each a stream of the trunk. ``async with`` opens and closes it.

    The manager is the caller's to open before and to close afterwards. ``allow_remote`` permits TCP beyond loopback.
    """

    def __init__(self, manager: StreamManager, endpoints: Sequence[Endpoint], *, allow_remote: bool = False) -> None:
        self._manager = manager
        self._wanted = tuple(endpoints)
        self._allow_remote = allow_remote
        self._listeners: list[Listener] = []
        # In the order of arrival, which a set would not keep.
        self._sessions: dict[Session, None] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def open(self) -> None:
        """Listens at all endpoints. Raises `UsageError` or `OSError`, and then listens at none."""
        try:
            for endpoint in self._wanted:
                self._listeners.append(await listen(endpoint, self._session, allow_remote=self._allow_remote))
        except BaseException:
            self.stop_accepting()
            raise

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens, with the ports that the system has chosen; none once it accepts no more."""
        return tuple(endpoint for listener in self._listeners for endpoint in listener.endpoints)

    @property
    def sessions(self) -> int:
        """Drivers that are connected, and cancels on their way."""
        return len(self._sessions)

    def __repr__(self) -> str:
        return f"<Sidecar at {', '.join(map(str, self.endpoints)) or 'nowhere'} [{self.sessions} sessions]>"

    # The end.

    def stop_accepting(self) -> None:
        """Takes no new drivers; those who have not said yet what they want are new."""
        listeners, self._listeners = self._listeners, []
        close_each(listener.close for listener in listeners)
        close_each(session.abort for session in list(self._sessions) if session.is_silent)

    async def wait_drained(self) -> None:
        """Waits until the last driver has left."""
        await self._is_empty.wait()

    async def close(self) -> None:
        """Ends all sessions, which are told so (57P01), and waits for them a second at most. Cancelled, it has no
        patience with them."""
        self.stop_accepting()
        close_each(
            partial(session.dismiss, "57P01", "the sidecar is shutting down") for session in list(self._sessions)
        )
        try:
            async with asyncio.timeout(FAREWELL_TIMEOUT):
                await self.wait_drained()
        except TimeoutError:
            self._abort_all()
            # What was aborted says so by itself, in the next turns of the loop.
            await self.wait_drained()
        except BaseException:
            self._abort_all()
            raise

    def _abort_all(self) -> None:
        close_each(session.abort for session in list(self._sessions))

    # For sessions.

    def _session(self) -> Session:
        return Session(self)

    def joined(self, session: Session) -> None:
        """A driver has connected."""
        self._sessions[session] = None
        self._is_empty.clear()
        if not self._listeners:
            # It was accepted in the very moment in which that ended.
            session.abort()

    def left(self, session: Session) -> None:
        """A session is over on both sides."""
        del self._sessions[session]
        if not self._sessions:
            self._is_empty.set()

    async def open_session(self, factory: Callable[[], P]) -> Opened[P]:
        """Opens a stream within the cap."""
        return await self._manager.open_numbered(factory)

    async def open_cancel(self, factory: Callable[[], P], request: CancelRequest) -> Opened[P]:
        """Opens a stream for a cancel, outside the cap, beside the session that it is for.

        One for a session that is not ours goes any way there is: the gateway finds out whose it is.
        """
        link: int | None = None
        for session in self._sessions:
            if session.link is None:
                continue
            if session.is_named_by(request):
                link = session.link
                break
            if link is None:
                link = session.link
        return await self._manager.open_numbered(factory, link=link)
