"""PBKDF2 away from the event loop: in threads (it gives up the GIL), each result once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from pgtrunk_gateway.auth import Derivation, DerivationCache, ScramKeys

__all__ = ["KeyDeriver"]

_THREADS = 2
"""A storm of logins may keep these busy, and no more of the machine."""


class KeyDeriver:
    """Runs derivations and remembers them. To be closed at the end."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="pbkdf2")
        self._cache: DerivationCache[asyncio.Future[ScramKeys]] = DerivationCache()

    async def __call__(self, derivation: Derivation) -> ScramKeys:
        # Shared by all who ask for the same: one of them may be cancelled, the work goes on for the others.
        return await asyncio.shield(self._cache.get(derivation, self._start))

    def _start(self, derivation: Derivation) -> asyncio.Future[ScramKeys]:
        future = asyncio.get_running_loop().run_in_executor(self._executor, derivation.run)
        future.add_done_callback(lambda done: self._forget_failed(derivation, done))
        return future

    def _forget_failed(self, derivation: Derivation, done: asyncio.Future[ScramKeys]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._cache.forget(derivation)

    def close(self) -> None:
        """Waits for what runs, a second or two at most."""
        self._executor.shutdown(wait=True, cancel_futures=True)
