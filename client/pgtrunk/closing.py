"""Many things are closed: what goes wrong with one of them is no reason to leave the others open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["close_each"]


def close_each(closers: Iterable[Callable[[], object]]) -> None:
    """Calls all of them. What one raises is told to the event loop's exception handler, as of a callback of its own."""
    for close in closers:
        try:
            close()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            asyncio.get_running_loop().call_exception_handler({"message": f"{close!r} failed", "exception": exc})
