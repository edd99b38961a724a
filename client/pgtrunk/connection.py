"""What a trunk asks of a QUIC connection, and how it gets one. Shapes, and a number.

`pgtrunk.quic.client.ClientConnection` has this shape; tests have another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pgtrunk.address import Address
    from pgtrunk.quic.control import Goaway
    from pgtrunk.quic.figures import Figures

__all__ = ["AGAIN", "Connection", "Connector"]

AGAIN = 8
"""How often a session is opened anew, at most, whose connection ended while it was early: of several gateways more than
one may be away, and who comes first to each finds out."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Connection(Protocol):
    """A QUIC connection whose handshake is done, or need not be waited for."""

    on_open: Callable[[], None] | None
    """Called once where it was early, when the gateway has answered."""
    on_credit: Callable[[], None] | None
    """Called when the gateway allows more streams."""
    on_lost: Callable[[BaseException], None] | None
    """Called once when the connection ends by itself."""
    on_leave: Callable[[Goaway], None] | None
    """Called when the gateway asks for it to be left, perhaps more than once."""
    leave: Goaway | None
    """What it has said last of that, also before anybody listened."""
    on_suspect: Callable[[bool], None] | None
    """Called when an answer is overdue, though something is outstanding; and with False when one came after all."""
    is_kept: bool
    """Whether it is to be kept alive though no stream is open. Set by its owner."""

    @property
    def stream_credit(self) -> int:
        """How many more streams may be opened right now under the gateway's MAX_STREAMS (RFC 9000 section 4.6)."""
        ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_early(self) -> bool:
        """Whether it is only taken to be open: the gateway has not answered, and nothing that it was told has had an
        effect. It stays so where the connection ends before."""
        ...

    @property
    def is_suspect(self) -> bool:
        """Whether an answer is overdue: the way to the gateway may be dead, or the gateway."""
        ...

    def figures(self) -> Figures | None:
        """What it is doing now; None where it is not QUIC's."""
        ...

    def open_stream(
        self, factory: Callable[[], P], *, on_closed: Callable[[BaseException | None], None]
    ) -> tuple[asyncio.Transport, P]:
        """Opens a stream; ``on_closed`` is called once when it has ended, with what ``connection_lost`` was given."""
        ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None:
        """Waits until nothing of it is left. Cancelled, it ends what is left at once."""
        ...


Connector: TypeAlias = Callable[["Address | None"], Coroutine[Any, Any, Connection]]
"""Opens a connection to the gateway; given an address, there, which a gateway has named."""
