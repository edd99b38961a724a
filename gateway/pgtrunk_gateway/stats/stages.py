"""How long the parts of a connection's queries took that only the gateway knows, for the client that asks for it.

Every query comes by here, so it is a list to append to; what is made of it is made once per second, by whoever reports
it. Pure: times are given.
"""

from __future__ import annotations

from typing import Final

__all__ = ["STAGES", "StageTimes"]

STAGES: Final = "stages"
"""What a transport is asked for those of its connection (``get_extra_info``); most have none."""


class StageTimes:
    """Those of one connection, and of all its sessions. Seconds."""

    __slots__ = ("executions", "waits")

    def __init__(self) -> None:
        self.executions: list[float] = []
        """From the hand-over of a request to a backend to the end of its answer. Requests in a row are one."""
        self.waits: list[float] = []
        """For a backend; what had one at once is not here."""

    def __len__(self) -> int:
        return len(self.executions) + len(self.waits)

    def take(self) -> tuple[list[float], list[float]]:
        """Waits and executions since the last time."""
        taken = self.waits[:], self.executions[:]
        # The same lists go on: sessions have the `append` of them.
        self.waits.clear()
        self.executions.clear()
        return taken
