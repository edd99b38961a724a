"""A stream whose connection has not completed its handshake, as a session sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.transports import FakeTransport

__all__ = ["EarlyTransport"]


class EarlyTransport(FakeTransport):
    """What comes is early data until :meth:`confirm`. It stands for its connection, too."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(quic_connection=self, **extra)
        self.peer: tuple[str, int] = ("192.0.2.1", 40000)
        self.is_early = True
        self._callbacks: list[Callable[[], object]] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer
        return self.is_early if name == "early" else super().get_extra_info(name, default)

    def call_when_confirmed(self, callback: Callable[[], object]) -> None:
        assert self.is_early, "it is confirmed already"
        self._callbacks.append(callback)

    def confirm(self) -> None:
        """The handshake is complete."""
        self.is_early = False
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()
