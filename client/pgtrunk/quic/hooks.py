"""What the owner of a connection may want to hear from its driver. Shapes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pgtrunk.errors import TrunkError

    from .control import Goaway, Stats
    from .driver import ConnectionDriver

__all__ = ["DriverHooks", "nothing"]


def nothing(*_: object) -> None:
    """Stand in for a callback that nobody has set."""


class DriverHooks(TypedDict, total=False):
    """Callbacks by name. Each is an attribute of the driver too, and may be set later."""

    on_ready: Callable[[ConnectionDriver], object]
    """The handshake is complete."""
    on_confirmed: Callable[[ConnectionDriver], object]
    """The other end knows that too; a client's certificate is accepted only then."""
    on_cid_issued: Callable[[bytes], object]
    """A connection id by which the peer may call us from now on, beside those in ``cids`` at the start."""
    on_cid_retired: Callable[[bytes], object]
    """A connection id by which the peer will not call us any more."""
    on_credit: Callable[[ConnectionDriver], object]
    """The peer lets us open more streams."""
    on_goaway: Callable[[Goaway], object]
    """The gateway asks us to move."""
    on_stats: Callable[[Stats], object]
    """The gateway reports how long its part of our queries took."""
    on_suspect: Callable[[bool], object]
    """The other end has not answered in time; False: it has again. Of clients only."""
    on_lost: Callable[[ConnectionDriver, TrunkError | None], object]
    """Once: no stream can be opened any more, and all get ``connection_lost``; None when this side closed it."""
    on_closed: Callable[[ConnectionDriver, TrunkError | None], object]
    """Once, after it: nothing is sent or expected any more. Forget the connection ids, close the socket."""
