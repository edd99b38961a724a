"""When a server may take early data (0-RTT): what a ticket promised, how old it is, and that it comes once.

Early data can be captured and sent again. Two bounds are drawn here, neither of which is enough by itself: a ticket's
age must be what the client says it is, to some seconds, and a worker takes early data with one ticket once. What is
left, a replay to another worker within these seconds, is met above: nothing is acted on before the handshake is
complete. RFC 8446 section 8, RFC 9001 section 4.6, RFC 9000 section 7.4.1. No clocks: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Self

from aioquic._buffer import Buffer
from aioquic.quic.packet import pull_quic_transport_parameters
from aioquic.tls import ExtensionType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FRESHNESS", "MAX_EARLY_DATA", "HandshakeCounters", "Terms", "UsedTickets"]

MAX_EARLY_DATA = 0xFFFFFFFF
"""What a ticket says that is good for early data (RFC 9001 section 4.6.1). How much may come is a matter of flow
control: what the client remembers of it is not raised before the handshake is complete, so that early data stays within
the bytes that each connection has reserved in the budget."""

FRESHNESS = 10.0
"""Seconds by which a ticket's age may differ from what the client says, for early data to be taken."""

MAX_USED = 8192
"""Tickets that a worker remembers to have taken early data with. While there are more, it takes none."""

_LIMITS = (
    "initial_max_data",
    "initial_max_stream_data_bidi_local",
    "initial_max_stream_data_bidi_remote",
    "initial_max_stream_data_uni",
    "initial_max_streams_bidi",
    "initial_max_streams_uni",
    "active_connection_id_limit",
)
"""What a client with early data takes for granted (RFC 9000 section 7.4.1)."""

_NUMBERS = Struct(f"!{len(_LIMITS)}I")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a client may count on when it sends early data with a ticket."""

    alpn: str
    limits: tuple[int, ...]
    """The transport parameters that bound what it sends, in the order of ``_LIMITS``."""

    @classmethod
    def of(cls, alpn: str | None, extensions: Iterable[tuple[int, bytes]]) -> Self | None:
        """Those of a handshake, from the extensions that the server sends; None where it has no such terms."""
        data = next((each for kind, each in extensions if kind == ExtensionType.QUIC_TRANSPORT_PARAMETERS), None)
        if alpn is None or data is None:
            return None
        parameters = pull_quic_transport_parameters(Buffer(data=data))
        return cls(alpn, tuple(min(getattr(parameters, name) or 0, 0xFFFFFFFF) for name in _LIMITS))

    def hold_under(self, others: Terms) -> bool:
        """Whether ``others``, which are in force now, allow all that these do."""
        pairs = zip(self.limits, others.limits, strict=True)
        return self.alpn == others.alpn and all(mine <= other for mine, other in pairs)

    def encode(self) -> bytes:
        """As a ticket carries them."""
        return _NUMBERS.pack(*self.limits) + self.alpn.encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The other way."""
        return cls(data[_NUMBERS.size :].decode(), _NUMBERS.unpack_from(data))


class UsedTickets:
    """The tickets that early data was taken with, for as long as they are fresh enough to be used again.

    Two sets, which change places once the older one holds nothing fresh any more: memory and time are bounded.
    """

    def __init__(self, *, window: float = 2 * FRESHNESS, most: int = MAX_USED) -> None:
        """``window``: seconds between the first moment in which a ticket of one stated age is fresh, and the last."""
        self._window = window
        self._most = most
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()
        self._turned_at = float("-inf")

    def __len__(self) -> int:
        """Tickets remembered."""
        return len(self._recent) + len(self._older)

    def take(self, mark: bytes, now: float) -> bool:
        """Uses a ticket up, and says whether it was there to be used: it was not before, and there is room to note it.

        ``mark`` is what tells it from others.
        """
        elapsed = now - self._turned_at
        if elapsed >= self._window:
            self._older = self._recent if elapsed < 2 * self._window else set()
            self._recent = set()
            self._turned_at = now
        if mark in self._recent or mark in self._older or len(self) >= self._most:
            return False
        self._recent.add(mark)
        return True


@dataclass(slots=True)
class HandshakeCounters:
    """What a server's completed handshakes were. Totals."""

    full: int = 0
    resumed: int = 0
    early: int = 0
    """Of those resumed, how many had early data that was taken."""
    late: int = 0
    """Of those resumed, how many had early data that was refused: it came again after the handshake."""
