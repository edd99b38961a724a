"""A stream whose connection has not completed its handshake, as a session sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.transports import FakeTransport

__all__ = ["EarlyTransport"]


class EarlyTransport(FakeTransport):
    """What comes is early data until :meth:`confirm`. It stands for its connection, too."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(peername=("192.0.2.1", 40000), quic_connection=self, early=True, **extra)
        self._callbacks: list[Callable[[], object]] = []

    def call_when_confirmed(self, callback: Callable[[], object]) -> None:
        assert self.get_extra_info("early"), "it is confirmed already"
        self._callbacks.append(callback)

    def confirm(self) -> None:
        """The handshake is complete."""
        self._extra["early"] = False
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()
