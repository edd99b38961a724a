"""Which session a cancel key belongs to."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Generic, TypeVar

from pgtrunk_gateway.cancel.keys import KEY_OCTETS, CancelKey, mint

__all__ = ["Registry"]

S = TypeVar("S")

_HOPS = 0b11


class Registry(Generic[S]):
    """The sessions by the pid of their key. The secret is compared, never looked up by."""

    def __init__(self, peer_id: int, random: Callable[[int], bytes]) -> None:
        self._peer_id = peer_id
        self._random = random
        self._sessions: dict[int, tuple[CancelKey, S]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def register(self, session: S) -> CancelKey:
        """A new key for ``session``, whose pid no other session has."""
        while (key := mint(self._peer_id, self._random(KEY_OCTETS))).pid in self._sessions:
            pass
        self._sessions[key.pid] = (key, session)
        return key

    def forget(self, key: CancelKey) -> None:
        """The session has ended."""
        self._sessions.pop(key.pid, None)

    def find(self, pid: int, secret: bytes) -> S | None:
        """The session that this request may cancel. Takes the same time for any wrong secret."""
        known = self._sessions.get(pid)
        if known is None:
            return None
        key, session = known
        # The hop count in the lowest two bits changes on the way between peers.
        return session if hmac.compare_digest(_without_hops(key.secret), _without_hops(secret)) else None


def _without_hops(secret: bytes) -> bytes:
    return secret[:-1] + bytes([secret[-1] | _HOPS]) if secret else secret
