"""The processes that share the listening ports; a gateway that is one process is a fleet of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.columns import ints, longs, texts
from pgtrunk_gateway.console.registry import show

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row, Value
    from pgtrunk_gateway.console.merging import Told
    from pgtrunk_gateway.console.view import View

__all__: list[str] = []

_FLEET: Final = (
    *ints("worker pid"),
    *texts("state"),
    *ints("sessions backends restarts uptime generation"),
    *longs("cpu_ms"),
)


def _merge_fleet(view: View, told: Told) -> Iterable[Row]:
    """The supervisor knows who there should be, the workers what they do."""
    names = [column.name for column in _FLEET]
    known: dict[Value, Mapping[str, Value]] = {
        row[0]: dict(zip(names, row, strict=True)) for table in told["FLEET"] for row in table
    }
    for table in told["ROSTER"]:
        for worker, pid, state, restarts, uptime in table:
            # What a worker says of itself goes before, but for what it cannot know.
            blank: dict[str, Value] = dict.fromkeys(names)
            blank |= {"worker": worker, "pid": pid, "state": state, "restarts": restarts, "uptime": uptime}
            known[worker] = blank | dict(known.get(worker, {})) | {"restarts": restarts, "uptime": uptime}
    for _, row in sorted(known.items(), key=lambda item: int(item[0] or 0)):
        yield [row[name] for name in names]


@show("FLEET", _FLEET, merge=_merge_fleet, also=["ROSTER"])
def show_fleet(view: View) -> Iterable[Row]:
    """Ages in seconds; ``cpu_ms`` is what the process has used of its processor, in milliseconds."""
    yield (
        view.place.worker,
        os.getpid(),
        "draining" if view.context.draining else view.operations.state,
        len(view.context.sessions),
        sum(len(pool.backends) for pool in view.pools),
        0,
        int(view.now() - view.since),
        view.place.generation,
        int(time.process_time() * 1000),
    )
