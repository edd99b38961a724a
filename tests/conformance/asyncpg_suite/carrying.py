"""asyncpg's ``connect`` in place of asyncpg's: sessions of a trunk, for all that name no server of their own.

The suite's tests know one way to a server, which is that of their environment, and each class of them has an event
loop of its own. So each loop has a trunk of its own here, which is closed when the loop is. A test that names a host
goes there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

import asyncpg

from pgtrunk import StreamManager
from pgtrunk.asyncpg_adapter import StreamLoop
from pgtrunk.dsn import check_session_arguments
from pgtrunk.errors import UsageError

__all__ = ["Carrier"]


class Carrier:
    """Carries sessions to the gateway at ``gateway``, whose certificate leads to ``ca_file``."""

    def __init__(self, gateway: str, ca_file: str) -> None:
        self._gateway = gateway
        self._ca_file = ca_file
        self._trunks: dict[asyncio.AbstractEventLoop, StreamManager] = {}
        self._plain = asyncpg.connect
        self.sessions = 0
        """How many have been opened."""

    def install(self) -> None:
        """Puts it where asyncpg's pools and its users look for ``connect``; they look each time."""

        @functools.wraps(self._plain)
        async def connect(dsn: str | None = None, **arguments: Any) -> asyncpg.Connection:
            return await self.connect(dsn, arguments)

        asyncpg.connect = asyncpg.connection.connect = connect

    async def connect(self, dsn: str | None, arguments: Mapping[str, Any]) -> asyncpg.Connection:
        """What asyncpg's own does, with its arguments and its errors."""
        # The trunk's adapter asks asyncpg in its turn, with a loop of its own kind.
        if isinstance(arguments.get("loop"), StreamLoop) or self._names_a_place(dsn, arguments):
            return await self._plain(dsn, **arguments)
        trunk = await self._trunk(asyncio.get_running_loop())
        connection = await trunk.connect(dsn, **{name: value for name, value in arguments.items() if name != "loop"})
        self.sessions += 1
        return connection

    def _names_a_place(self, dsn: str | None, arguments: Mapping[str, Any]) -> bool:
        try:
            check_session_arguments(dsn, arguments, gateway=self._gateway, verified=True)
        except UsageError:
            return True
        return False

    async def _trunk(self, loop: asyncio.AbstractEventLoop) -> StreamManager:
        trunk = self._trunks.get(loop)
        if trunk is None:
            trunk = self._trunks[loop] = StreamManager(self._gateway, ca_file=self._ca_file)
            await trunk.open()
            self._close_with(loop, trunk)
        return trunk

    def _close_with(self, loop: asyncio.AbstractEventLoop, trunk: StreamManager) -> None:
        close = loop.close

        def close_both() -> None:
            if self._trunks.pop(loop, None) is not None:
                loop.run_until_complete(trunk.close())
            close()

        loop.close = close_both  # type: ignore[method-assign]
