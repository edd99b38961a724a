"""A worker's place in its fleet: which one it is, and how it talks to the others.

Workers have no connection to each other: the supervisor passes on what one of them says to the others, and brings the
answers back. That is for what is rare (cancels that landed wrong, the console, reloads); datagrams and budgets have
ways of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.fleet.bus import as_error

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.fleet.bus import Answer, Bus, Handler
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Member"]

RELAY: Final = "relay"
HEARD: Final = "heard"
_MARGIN: Final = 1.0
"""Seconds more than the others have that the supervisor has for bringing their answers back."""


@dataclass(slots=True)
class Member:
    """Worker number ``index`` (from 0) of ``count``. A gateway without a fleet has none."""

    index: int
    count: int
    bus: Bus
    """To the supervisor."""
    generation: int = 0
    """Counts the fleets that had these ports one after the other; see online restart."""
    _handlers: dict[str, Handler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bus.on(HEARD, self._heard)

    def on(self, kind: str, handler: Handler) -> None:
        """``handler`` acts on what another worker says of this ``kind``; its body has the worker's number as "from"."""
        self._handlers[kind] = handler

    async def ask_others(
        self, kind: str, body: Body | None = None, *, timeout: float
    ) -> dict[int, Body | GatewayError]:
        """What each of the other workers answers, by its number, or the error that came instead. Those that are not
        there, or not any more, are left out. Raises :class:`WorkerLost` where the supervisor has gone."""
        asked = {"kind": kind, "body": body or {}, "timeout": timeout}
        answers = await self.bus.ask(RELAY, asked, timeout=timeout + _MARGIN)
        return {
            int(index): as_error(answer["e"]) if "e" in answer else answer["b"]
            for index, answer in answers["answers"].items()
        }

    async def ask_worker(self, index: int, kind: str, body: Body | None = None, *, timeout: float) -> Body:
        """The answer of one worker. Raises what it raised, or :class:`WorkerLost`."""
        asked = {"kind": kind, "body": body or {}, "timeout": timeout, "to": index}
        return await self.bus.ask(RELAY, asked, timeout=timeout + _MARGIN)

    def tell_others(self, kind: str, body: Body | None = None) -> None:
        """Says something to all others, without an answer."""
        self.bus.tell(RELAY, {"kind": kind, "body": body or {}})

    def _heard(self, body: Body) -> Answer | Awaitable[Answer]:
        return self._handlers[body["kind"]](body["body"] | {"from": body["from"]})
