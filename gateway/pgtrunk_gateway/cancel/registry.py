"""Which session a cancel key belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pgtrunk_gateway.cancel.keys import KEY_OCTETS, LONG_KEY_OCTETS, CancelKey, is_secret, mint

__all__ = ["Registry"]

S = TypeVar("S")


class Registry(Generic[S]):
    """The sessions by the pid of their key, which several may share. The secret is compared, never looked up by."""

    def __init__(self, peer_id: int, random: Callable[[int], bytes], *, long_keys: bool = True) -> None:
        self.peer_id = peer_id
        """In the keys that are made from now on."""
        self.long_keys = long_keys
        """Whether they may have long secrets; PgBouncer drops a request with one, so not where it may be a peer."""
        self._random = random
        self._sessions: dict[int, list[tuple[CancelKey, S]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def register(self, session: S, *, long: bool = False) -> CancelKey:
        """A new key for ``session``; ``long``: its client takes a long secret.

        Where a peer_id is set, 15 bits of the pid are random: some will be equal.
        """
        key = mint(self.peer_id, self._random(LONG_KEY_OCTETS if long and self.long_keys else KEY_OCTETS))
        self._sessions.setdefault(key.pid, []).append((key, session))
        return key

    def forget(self, key: CancelKey) -> None:
        """The session has ended."""
        left = [known for known in self._sessions.get(key.pid, ()) if known[0] is not key]
        if left:
            self._sessions[key.pid] = left
        else:
            self._sessions.pop(key.pid, None)

    def find(self, pid: int, secret: bytes) -> S | None:
        """The session that this request may cancel. Takes the same time for any wrong secret of a key's length."""
        found = None
        for key, session in self._sessions.get(pid, ()):
            if is_secret(key, secret):
                found = session
        return found
