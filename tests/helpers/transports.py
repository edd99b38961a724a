"""A transport without a socket: it records what is done to it, and does nothing by itself."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["FakeTransport"]


class FakeTransport(asyncio.Transport):
    """One end. ``take()`` gives what has been written since the last time."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(extra)
        self.protocol: asyncio.BaseProtocol | None = None
        self.paused = False
        self.closing = False
        self.aborted = False
        self.ended = False
        self.buffered = 0
        """What it says that the far end has not taken yet."""
        self._written: list[bytes] = []

    def take(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert data, "an empty write is a wasted system call"
        if not self.closing:
            self._written.append(bytes(data))

    def pause_reading(self) -> None:
        assert not self.closing
        self.paused = True

    def resume_reading(self) -> None:
        assert not self.closing
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused and not self.closing

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.closing
        self.ended = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def get_write_buffer_size(self) -> int:
        return self.buffered
