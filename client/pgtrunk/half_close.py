"""The end of what one side of a socket says, while the other side may go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["half_close"]


def half_close(transport: asyncio.WriteTransport) -> None:
    """Writes no more; never raises.

    A socket whose other end has reset it can no longer be shut down (ENOTCONN), which nobody has heard of until the
    event loop reads from it next. asyncio's own transports raise that where they have nothing left to send; uvloop's do
    not. Nobody is there to be told, so such a socket is given up. Where they are closed it is uvloop's that raise.
    """
    if transport.is_closing():
        return
    try:
        transport.write_eof()
    except OSError:
        transport.abort()
