"""How many TCP connections a trunk has, and may have (``tcp_connections``). Its carriers share it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk.tcp.carrier import TcpCarrier

__all__ = ["Cap"]


class Cap:
    """See above."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.carriers: list[TcpCarrier] = []
        """Those that are not closed."""

    @property
    def left(self) -> int:
        """Never negative: cancels count too, though nothing keeps them from being sent."""
        return max(0, self.most - self.used)

    def take(self) -> None:
        self.used += 1

    def give_back(self) -> None:
        self.used -= 1
        for carrier in list(self.carriers):
            if carrier.on_credit is not None:
                carrier.on_credit()
