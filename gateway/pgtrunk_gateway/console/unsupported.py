"""Operations that refuse to do anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pgtrunk_gateway.errors import NotSupported

if TYPE_CHECKING:
    from pgtrunk_gateway.console.operations import PoolerState, Wait

__all__ = ["Unsupported"]


class Unsupported:
    """A gateway that cannot be steered."""

    state: PoolerState = "active"

    async def reload(self) -> None:
        self._refuse()

    def set(self, key: str, value: str) -> None:
        self._refuse()

    async def pause(self, database: str | None) -> None:
        self._refuse()

    def resume(self, database: str | None) -> None:
        self._refuse()

    async def suspend(self) -> None:
        self._refuse()

    def disable(self, database: str) -> None:
        self._refuse()

    def enable(self, database: str) -> None:
        self._refuse()

    def reconnect(self, database: str | None) -> None:
        self._refuse()

    def kill(self, database: str | None) -> None:
        self._refuse()

    def kill_client(self, session: int) -> None:
        self._refuse()

    async def wait_close(self, database: str | None) -> None:
        self._refuse()

    def shutdown(self, wait: Wait | None) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotSupported("this gateway cannot be steered by the console yet")
