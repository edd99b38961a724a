"""Where a dialogue's bytes wait until its coroutine reads them: logins, of clients and at servers."""

from __future__ import annotations

import asyncio

__all__ = ["Inbox"]


class Inbox(asyncio.Protocol):
    """Collects what arrives. One reader at a time; who feeds it bounds what it holds."""

    def __init__(self) -> None:
        self._data = b""
        self._lost: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._data)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionResetError("the other side closed the connection")
        self._wake()

    def take(self) -> bytes:
        """All that is there, maybe nothing."""
        data, self._data = self._data, b""
        return data

    async def change(self) -> None:
        """Returns when something has arrived, the connection has ended, or :meth:`stir` is called."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def stir(self) -> None:
        """Lets :meth:`change` return."""
        self._wake()

    async def read(self) -> bytes:
        """What has arrived, at least one octet; raises the :class:`Exception` that ended the connection (OSError)."""
        while not self._data:
            if self._lost is not None:
                raise self._lost
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.take()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
