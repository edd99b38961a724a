"""The sessions of asyncpg's pools, and when one may end so that the pool opens another on a better connection.

Only a session that its pool has, and nobody else, may end unasked: nothing runs on it, no transaction is open, and
nobody will see it go. asyncpg tells when that is, by the hooks that its pools have::

    HELD   until ``init`` is over   -> FREE
    FREE   ``setup``, as a connection is acquired   -> HELD
    HELD   ``reset``, as it is given back           -> FREE, in the next turn of the loop

In the next turn, since asyncpg does something more after ``init`` and ``reset``, without an await. By then another
task may have acquired it: that has counted one more, and the change is void.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

    from pgtrunk.trunk import Opened, Trunk

__all__ = ["PooledSessions"]

TERMINATE = b"X\x00\x00\x00\x04"
"""Protocol 3.0, Terminate: the frontend ends the session."""


@dataclass(slots=True, eq=False)
class PooledSession:
    """One of them."""

    settings: object
    """asyncpg's `ConnectionSettings` of it, by which it is known: a pool lends out proxies of its connections, and what
    they have in common is this."""
    opened: Opened[asyncio.Protocol]
    free: bool = False
    turns: int = 0
    """How often it was lent out."""


class PooledSessions:
    """All sessions of the pools of one trunk."""

    def __init__(self, trunk: Trunk) -> None:
        self._trunk = trunk
        self._sessions: dict[int, PooledSession] = {}
        trunk.lines.movers.append(self._vacate)

    def hooks(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The hooks of a pool, around those that its ``arguments`` have."""
        init, setup, reset = (arguments.get(name) for name in ("init", "setup", "reset"))

        async def initialized(connection: asyncpg.Connection) -> None:
            if init is not None:
                await init(connection)
            self._give_back(connection)

        async def acquired(connection: asyncpg.pool.PoolConnectionProxy) -> None:
            self._lend(connection)
            if setup is not None:
                await setup(connection)

        async def released(connection: asyncpg.Connection) -> None:
            if reset is not None:
                await reset(connection)
            elif query := connection.get_reset_query():
                # What asyncpg itself does where a pool has no ``reset``.
                await connection.execute(query)
            self._give_back(connection)

        return {"init": initialized, "setup": acquired, "reset": released}

    def add(self, connection: asyncpg.Connection, opened: Opened[asyncio.Protocol]) -> None:
        """A pool has opened a session."""
        session = PooledSession(connection.get_settings(), opened)
        self._sessions[id(session.settings)] = session

        def terminated(_: object) -> None:
            # By now the connection does not know its settings any more.
            self._forget(session)

        connection.add_termination_listener(terminated)

    def __len__(self) -> int:
        return len(self._sessions)

    # What pools do.

    def _lend(self, connection: asyncpg.Connection | asyncpg.pool.PoolConnectionProxy) -> None:
        session = self._find(connection)
        if session is not None:
            session.free = False
            session.turns += 1

    def _give_back(self, connection: asyncpg.Connection) -> None:
        session = self._find(connection)
        if session is not None:
            self._trunk.loop.call_soon(self._freed, session, session.turns)

    def _freed(self, session: PooledSession, turns: int) -> None:
        if session.turns == turns:
            session.free = True
            self._move(session)

    def _find(self, connection: asyncpg.Connection | asyncpg.pool.PoolConnectionProxy) -> PooledSession | None:
        return None if connection.is_closed() else self._sessions.get(id(connection.get_settings()))

    def _forget(self, session: PooledSession) -> None:
        key = id(session.settings)
        if self._sessions.get(key) is session:
            del self._sessions[key]

    # What the trunk says.

    def _vacate(self, link: int) -> None:
        for session in list(self._sessions.values()):
            if session.opened.link == link:
                self._move(session)

    def _move(self, session: PooledSession) -> None:
        """Ends it, if it may go. asyncpg must hear of that before anybody can acquire it: it learns it here and now, as
        of a server that has closed the session, and the transport says what remains to nobody."""
        transport = session.opened.transport
        if not session.free or transport.is_closing() or not self._trunk.lines.may_leave(session.opened.link):
            return
        self._forget(session)
        self._trunk.counters.sessions_moved += 1
        transport.set_protocol(asyncio.Protocol())
        transport.write(TERMINATE)
        transport.close()
        session.opened.protocol.connection_lost(None)
