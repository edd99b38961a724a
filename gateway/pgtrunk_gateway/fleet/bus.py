"""One end of the connection between the supervisor and a worker: questions, their answers, and words without any.

A question has a number, which its answer repeats; answers may come in any order. What a handler raises as a
:class:`GatewayError` comes out of :meth:`Bus.ask` at the other end as the same error. When the connection is lost,
whoever waits for an answer gets :class:`WorkerLost`, and so does who asks later.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pgtrunk_gateway.errors import GatewayError, InternalError, WorkerLost
from pgtrunk_gateway.fleet.frames import LONGEST, Body, Frames, encode

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Answer", "Bus", "Handler", "as_body", "as_error"]

log = logging.getLogger(__name__)

_MOST_UNREAD: Final = 4 * LONGEST
"""Octets that may wait for who does not read them: some long answers. Who is stuck must not cost all memory."""

Answer: TypeAlias = Body | None
"""None is as good as {}."""
Handler: TypeAlias = Callable[[Body], "Answer | Awaitable[Answer]"]
"""Acts on what the other end says. Where it was a word and no question, the answer goes nowhere."""


class Bus(asyncio.Protocol):
    """One end. ``name`` is what the other one is called, in errors and in the log."""

    def __init__(self, name: str, lost: Callable[[], None] | None = None) -> None:
        self.name = name
        self._lost = lost
        self._handlers: dict[str, Handler] = {}
        self._frames = Frames()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Body]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()

    def on(self, kind: str, handler: Handler) -> None:
        """``handler`` acts on what is said of this ``kind``; the other end must not say it before."""
        self._handlers[kind] = handler

    @property
    def is_open(self) -> bool:
        """Whether the other end is there."""
        return self._transport is not None and not self._gone.done()

    # -- what is said --------------------------------------------------------------------------------------------------

    async def ask(self, kind: str, body: Body | None = None, *, timeout: float) -> Body:
        """The answer of the other end. Raises what its handler raised, or :class:`WorkerLost` where none came within
        ``timeout`` seconds."""
        if not self.is_open:
            raise WorkerLost(f"{self.name} has gone")
        number = next(self._numbers)
        answer: asyncio.Future[Body] = self._loop.create_future()
        self._asked[number] = answer
        self._write({"k": kind, "n": number, "b": body or {}})
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise WorkerLost(
                f"{self.name} has not answered within {timeout:g} s", detail=f"Asked for: {kind}."
            ) from None
        finally:
            del self._asked[number]

    def tell(self, kind: str, body: Body | None = None) -> None:
        """Says something that has no answer; if the other end has gone, nobody hears it."""
        if self.is_open:
            self._write({"k": kind, "b": body or {}})

    def close(self) -> None:
        """Ends the connection. What has been said before still arrives."""
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once: what has not been read is lost."""
        self.close()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Returns when the connection has ended, and nothing runs for it."""
        if self._transport is not None:
            await asyncio.shield(self._gone)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _write(self, frame: Body) -> None:
        assert self._transport is not None
        self._transport.write(encode(frame))
        if self._transport.get_write_buffer_size() > _MOST_UNREAD and not self._transport.is_closing():
            log.error("%s reads nothing: %d octets wait for it", self.name, self._transport.get_write_buffer_size())
            self.abort()

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
        except GatewayError as error:
            log.error("%s: %s", self.name, error)
            self.close()
            return
        for frame in frames:
            self._heard(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(WorkerLost(f"{self.name} has gone"))
        for task in self._tasks:
            task.cancel()
        if self._lost is not None:
            self._lost()

    def _heard(self, frame: Body) -> None:
        if "r" in frame:
            answer = self._asked.get(frame["r"])
            if answer is not None and not answer.done():
                if "e" in frame:
                    answer.set_exception(as_error(frame["e"]))
                else:
                    answer.set_result(frame["b"])
            return
        number: int | None = frame.get("n")
        try:
            handler = self._handlers.get(frame["k"])
            if handler is None:
                raise InternalError(f"{frame['k']} means nothing here")
            result = handler(frame["b"])
        except Exception as error:
            self._failed(number, frame["k"], error)
            return
        if inspect.isawaitable(result):
            task = self._loop.create_task(self._act(number, frame["k"], result), name=f"{frame['k']} for {self.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(number, result)

    async def _act(self, number: int | None, kind: str, result: Awaitable[Answer]) -> None:
        try:
            answer = await cast("Coroutine[Any, Any, Answer]", result)
        except Exception as error:
            self._failed(number, kind, error)
        else:
            self._answer(number, answer)

    def _answer(self, number: int | None, body: Answer) -> None:
        if number is not None and self.is_open:
            self._write({"r": number, "b": body or {}})

    def _failed(self, number: int | None, kind: str, error: Exception) -> None:
        if not isinstance(error, GatewayError):
            log.error("%s: %s failed", self.name, kind, exc_info=error)
            error = InternalError(f"{kind} failed: {error!r}")
        if number is not None and self.is_open:
            self._write({"r": number, "e": as_body(error)})


def as_body(error: GatewayError) -> Body:
    """An error, as it travels."""
    return {
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "severity": error.severity,
        "sqlstate": error.sqlstate,
    }


def as_error(body: Body) -> GatewayError:
    """The other way."""
    return GatewayError(
        body["message"],
        detail=body["detail"],
        hint=body["hint"],
        severity=body["severity"],
        sqlstate=body["sqlstate"],
    )
