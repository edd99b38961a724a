"""What the supervisor passes on between its workers; see :class:`~pgtrunk_gateway.fleet.member.Member`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pgtrunk_gateway.errors import GatewayError, WorkerLost
from pgtrunk_gateway.fleet.beyond import ASKED_BEYOND
from pgtrunk_gateway.fleet.bus import as_body
from pgtrunk_gateway.fleet.member import HEARD, RELAY

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.beyond import Beyond
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Hub"]


class Hub:
    """``workers`` gives the connections to those that are there now, by their numbers."""

    def __init__(self, workers: Callable[[], Mapping[int, Bus]], beyond: Beyond | None = None) -> None:
        self._workers = workers
        self._beyond = beyond

    def serve(self, index: int, bus: Bus) -> None:
        """Worker ``index`` may talk to the others from now on."""
        bus.on(RELAY, lambda body: self._relay(index, body))

    async def ask_all(self, kind: str, body: Body | None = None, *, timeout: float) -> dict[int, Body | GatewayError]:
        """The supervisor's own question to all workers -> what each answers, or the error that came instead."""
        workers = dict(self._workers())
        answers = await asyncio.gather(
            *(bus.ask(kind, body, timeout=timeout) for bus in workers.values()), return_exceptions=True
        )
        return {
            index: answer if not isinstance(answer, BaseException) else _error(answer)
            for index, answer in zip(workers, answers, strict=True)
        }

    async def _relay(self, index: int, asked: Body) -> Body:
        frame = {"kind": asked["kind"], "body": asked["body"], "from": index}
        to, timeout = asked.get("to"), asked.get("timeout")
        if to is not None and to < 0 and self._beyond is not None:
            return await self._beyond.ask(to, asked["kind"], asked["body"], timeout=timeout)
        if to is not None:
            bus = self._workers().get(to)
            if bus is None:
                raise WorkerLost(f"worker {to} has gone")
            return await bus.ask(HEARD, frame, timeout=asked["timeout"])
        others = {number: bus for number, bus in self._workers().items() if number != index}
        if timeout is None:
            for bus in others.values():
                bus.tell(HEARD, frame)
            return {}
        asking = {number: bus.ask(HEARD, frame, timeout=timeout) for number, bus in others.items()}
        if self._beyond is not None and asked["kind"] in ASKED_BEYOND:
            for way in self._beyond.ways:
                asking[way] = self._beyond.ask(way, asked["kind"], asked["body"], timeout=timeout)
        answers = await asyncio.gather(*asking.values(), return_exceptions=True)
        return {
            "answers": {
                str(number): {"e": as_body(_error(answer))} if isinstance(answer, BaseException) else {"b": answer}
                for number, answer in zip(asking, answers, strict=True)
            }
        }


def _error(error: BaseException) -> GatewayError:
    if not isinstance(error, GatewayError):
        raise error
    return error
