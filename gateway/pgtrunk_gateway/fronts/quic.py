"""Sessions over QUIC: each bidirectional stream that a client opens is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fronts.front import SessionFactory

__all__ = ["QuicFront"]


class QuicFront:
    name = "quic"
    addresses: list[str]

    def stop_accepting(self) -> None: ...
    async def close(self) -> None: ...

    @classmethod
    async def listen(cls, loaded: Loaded, session: SessionFactory) -> QuicFront:
        raise NotImplementedError
