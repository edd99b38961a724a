"""How much memory a process has needed at most since somebody began to look. Linux tells it in /proc."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["Peak"]


class Peak:
    """Of the processes with these pids, from now on."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._before: dict[int, int] = {}
        for pid in pids:
            # proc(5): 5 resets the peak of resident memory to what it is now.
            Path(f"/proc/{pid}/clear_refs").write_text("5")
            self._before[pid] = _peak(pid)

    @property
    def growth(self) -> int:
        """Octets by which the one that has grown most was at its peak larger than at the beginning."""
        return max(_peak(pid) - before for pid, before in self._before.items())


def _peak(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10
