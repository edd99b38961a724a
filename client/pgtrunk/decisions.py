"""What the allocation decides, and why somebody is refused: values that carry the facts behind them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pgtrunk.link import Slot

__all__ = [
    "Dial",
    "HangUp",
    "Keep",
    "Replaced",
    "Vacate",
    "Refuse",
    "WakeAt",
    "Decision",
    "Full",
    "Unreachable",
    "LinkGone",
    "Shut",
    "Refusal",
    "Waiter",
]


@dataclass(frozen=True, slots=True)
class Full:
    """No stream became free in time, though the gateway can be reached."""

    waited: float
    """Seconds that this caller waited."""
    waiting: int
    """Callers that wait, this one included."""
    oldest: float
    """Seconds that the first of them has waited."""
    ready: int
    """Connections that are open, of at most ``connections``."""
    connections: int
    sessions: int
    """Streams in use, on at most ``streams_per_connection`` of each connection."""
    streams_per_connection: int
    limited_by_gateway: int
    """Connections that are full because of the gateway's MAX_STREAMS, not of ``streams_per_connection``."""
    cause: BaseException | None
    """Why a further connection could not be opened, if one was tried."""
    suspect: int = 0
    """Connections that are open and owe an answer."""
    own_limit: str | None = None
    """The setting that is to blame in the place of MAX_STREAMS, with its value; see `Link`."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """There is no connection to the gateway."""

    waited: float
    """Seconds that this caller waited."""
    failures: int
    """Losses and failed attempts in a row; 0: the first attempt has no answer yet."""
    down: float
    """Seconds since it was last reached or first tried."""
    retry_in: float | None
    """Seconds until the next attempt; None: one is under way."""
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class LinkGone:
    """The connection of the session that a cancel was meant for is gone, and the session with it."""


@dataclass(frozen=True, slots=True)
class Shut:
    """The trunk was closed."""


Refusal: TypeAlias = Full | Unreachable | LinkGone | Shut


class Waiter(Protocol):
    """Somebody who waits for a slot."""

    @property
    def number(self) -> int:
        """Its place in the order of arrival, unique."""
        ...

    @property
    def since(self) -> float: ...

    @property
    def link(self) -> int | None:
        """The link whose session a cancel is for; None: a session, which takes any."""
        ...

    def offer(self, slot: Slot) -> bool:
        """Returns whether the slot was accepted. On False it stays with the one who offers."""
        ...


W = TypeVar("W", bound=Waiter)


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a QUIC connection and report it under this number."""

    link: int
    waiting: int
    """Sessions that wait for a stream."""
    ready: int
    """Connections that are open, and full."""
    failures: int
    """Failures in a row before this attempt."""
    replaces: int | None = None
    """The connection whose time is over, and which is to be left when this one is ready."""

    def __str__(self) -> str:
        if self.replaces is not None:
            return f"in place of connection {self.replaces}, whose max_lifetime is over"
        full = f", all {self.ready} open connections full" if self.ready else ""
        again = f", after {self.failures} failures" if self.failures else ""
        return f"{self.waiting} waiting{full}{again}"


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a connection that nobody uses."""

    link: int
    idle: float
    """Seconds since its last stream ended."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a connection alive without streams, or do so no longer."""

    link: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """The time of a connection is over, and another is ready in its place: from now on it is left."""

    link: int
    by: int
    age: float
    """Seconds that it was ready."""


@dataclass(frozen=True, slots=True)
class Vacate:
    """This connection is to be left, or it owes an answer, and another one is ready: sessions on it that are idle may
    end, to be opened anew elsewhere. Decided once for each connection that is to be left, and each time that one owes
    an answer."""

    link: int


@dataclass(frozen=True, slots=True)
class Refuse(Generic[W]):
    """Tell a waiter that it gets no slot. It waits no longer."""

    waiter: W
    why: Refusal


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask again at this time; None: not unless something happens. The last decision of each round."""

    when: float | None


Decision: TypeAlias = Dial | HangUp | Keep | Replaced | Vacate | Refuse[W] | WakeAt
