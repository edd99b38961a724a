"""The cancel keys of sessions that have ended lately. Pure.

A cancel and the end of its session often cross: who shows such a key is late, and is no guesser.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pgtrunk_gateway.cancel.keys import as_minted

if TYPE_CHECKING:
    from pgtrunk_gateway.cancel.keys import CancelKey

__all__ = ["EndedKeys"]


class EndedKeys:
    """The last ``capacity`` of them."""

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        # Looked up by the secret, too: these keys open nothing any more.
        self._keys: OrderedDict[tuple[int, bytes], None] = OrderedDict()

    def add(self, key: CancelKey) -> None:
        self._keys[key.pid, as_minted(key.secret)] = None
        if len(self._keys) > self.capacity:
            self._keys.popitem(last=False)

    def has(self, pid: int, secret: bytes) -> bool:
        """Whether a request with this secret comes too late, however often it has been forwarded."""
        return (pid, as_minted(secret)) in self._keys

    def __len__(self) -> int:
        return len(self._keys)
