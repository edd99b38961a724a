"""The gateway itself: its version, its state, its settings, its memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.config.keys import MAIN
from pgtrunk_gateway.console.columns import ints, texts
from pgtrunk_gateway.console.merging import by_key
from pgtrunk_gateway.console.registry import show
from pgtrunk_gateway.errors import NotSupported
from pgtrunk_gateway.fronts.quic import QuicFront

if TYPE_CHECKING:
    from pgtrunk_gateway.config.key import Key
    from pgtrunk_gateway.console.columns import Row, Value
    from pgtrunk_gateway.console.merging import Group
    from pgtrunk_gateway.console.view import View

__all__: list[str] = []


@show("CONFIG", texts("key value default changeable"), alike=True)
def show_config(view: View) -> Iterable[Row]:
    for key in MAIN.values():
        yield key.name, _value(key, view), key.default, "yes" if key.changeable else "no"


def _value(key: Key, view: View) -> str:
    if key.name == "conffile":
        return view.loaded.path
    if hasattr(view.config, key.name):
        return key.kind.write(getattr(view.config, key.name))
    # What the gateway does not act on is shown as it was read.
    return key.kind.write(view.loaded.reading.main.get(key.name, key.default_value))


@show("VERSION", texts("version"), alike=True)
def show_version(view: View) -> Iterable[Row]:
    yield (f"pgtrunk-gateway {version('pgtrunk-gateway')}",)


def _state(name: str, group: Group) -> Value:
    """A fleet is active where all of it is, and paused where any of it is."""
    every = all if group["key"][0] == "active" else any
    return "yes" if every(value == "yes" for value in group[name]) else "no"


_STATE: Final = texts("key value")


@show("STATE", _STATE, merge=by_key("STATE", _STATE, "key", {"value": _state}))
def show_state(view: View) -> Iterable[Row]:
    for state in ("active", "paused", "suspended"):
        yield state, "yes" if view.operations.state == state else "no"


@show("MEM", (*texts("name"), *ints("size used free memtotal")))
def show_mem(view: View) -> Iterable[Row]:
    """PgBouncer lists its slabs; here are the process at its largest, and what QUIC holds of its budget."""
    yield "process", 1, _peak(), 0, _peak()
    for front in view.fronts():
        if isinstance(front, QuicFront):
            held, limit = front.budget.held, front.budget.limit
            yield "quic_unread", 1, held, max(limit - held, 0), limit


def _peak() -> int:
    """Bytes; getrusage(2) counts in kilobytes, on macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@show("FDS", texts("fd task user database addr port cancel link client_encoding std_strings datestyle timezone password"
                   " scram_client_key scram_server_key"), for_admins=True)  # fmt: skip
def show_fds(view: View) -> Iterable[Row]:
    raise NotSupported(
        "SHOW FDS is not supported",
        detail="It hands a pooler's sockets over to its successor.",
        hint="With workers > 1, pgtrunk-gateway -R takes them over; else start the new gateway beside the old one"
        " (so_reuseport = 1), then SHUTDOWN WAIT_FOR_CLIENTS.",
    )
