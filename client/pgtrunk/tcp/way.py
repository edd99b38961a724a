"""One of the two ways in a race: a whole dial, which may go on when the other has won."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from pgtrunk.errors import CertificateError, TrunkError

if TYPE_CHECKING:
    from pgtrunk.address import Address
    from pgtrunk.connection import Connection
    from pgtrunk.dialer import Dialer
    from pgtrunk.quic.racing import Entrant

__all__ = ["Way"]


class Way:
    """See above. ``open`` is for the race; ``begin``, ``succeeds`` and ``end`` for those who have it go on."""

    def __init__(self, dialer: Dialer, at: Address | None) -> None:
        self.connection: Connection | None = None
        self.error: TrunkError | None = None
        self._task: asyncio.Task[Connection] | None = None
        self._dialer = dialer
        self._at = at
        self._begun: list[Entrant] = []
        self._is_over = False

    @property
    def is_begun(self) -> bool:
        return self._task is not None

    @property
    def is_heard(self) -> bool:
        return any(each.is_heard for each in self._begun)

    def is_unanswered(self, error: TrunkError) -> bool:
        """Whether it failed for want of an answer, though it knew whom to ask; a handshake that was begun and never
        went on is no better."""
        silent = isinstance(error.__cause__, TimeoutError) or not self.is_heard
        return bool(self._begun) and silent and not isinstance(error, CertificateError)

    def begin(self, deadline: float) -> asyncio.Task[Connection]:
        dial = self._dialer.dial(self._at, deadline=deadline, begun=self._begun)
        self._task = asyncio.get_running_loop().create_task(dial, name=f"pgtrunk way {self._dialer}")
        return self._task

    async def open(self, deadline: float) -> None:
        try:
            self.connection = await asyncio.shield(self.begin(deadline))
        except TrunkError as exc:
            self.error = exc
            raise

    async def succeeds(self) -> bool:
        """Whether there is a connection in the end, and somebody has answered on it."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if self._task.cancelled() or self._task.exception() is not None:
            return False
        return await _is_answered(self._task.result())

    def discard(self) -> None:
        """It is ready, and the other was too. `end` does what is to be done."""

    def give_up(self) -> None:
        """Ends it, and waits for nothing; a second time it does nothing."""
        if self._task is None or self._is_over:
            return
        self._is_over = True
        self._task.cancel()
        if self._task.done():
            _put_down(self._task)
        else:
            self._task.add_done_callback(_put_down)

    async def end(self) -> None:
        """Leaves nothing behind, though the caller be cancelled."""
        self.give_up()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])


async def _is_answered(connection: Connection) -> bool:
    """One that is early is there because a ticket says so. It ends by itself where no answer comes."""
    if not connection.is_early:
        return True
    if not connection.is_alive:
        return False
    answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def decided(error: BaseException | None = None) -> None:
        if not answered.done():
            answered.set_result(error is None)

    connection.on_open = connection.on_lost = decided
    return await answered


def _put_down(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        connection: Entrant = cast("Any", task.result())
        connection.discard()
