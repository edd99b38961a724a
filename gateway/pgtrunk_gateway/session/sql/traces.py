"""What a command may leave behind in its session when its transaction is over: its *traces*.

Settings can be carried to another backend, so what counts is their names; what they come to is asked of Postgres when
the transaction has ended, which knows of rollbacks and savepoints. The rest cannot be carried: only the backend on
which it was made has it. That too is asked when the transaction has ended; before, it only has to be told from what is
certainly none, so that whatever is not clear is taken for a trace. Functions that do such things out of sight, and
texts that are put together on the server, leave traces that nobody can see. Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session.parameters import is_name, setting_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["IDENTITY", "NOTHING", "SPECIAL", "Pin", "Traces", "setting_traces"]


class Pin(enum.IntFlag):
    """What cannot be carried; see :attr:`words`."""

    NONE = 0
    LISTEN = enum.auto()
    TEMPORARY = enum.auto()
    LOCK = enum.auto()
    CURSOR = enum.auto()
    LIBRARY = enum.auto()
    SETTINGS = enum.auto()
    """Settings of which the names are not known, or no names."""

    @property
    def words(self) -> str:
        """Each of them in a few words, as the console and messages have it."""
        return ", ".join(_WORDS[pin] for pin in self)


_WORDS: Final = {
    Pin.LISTEN: "LISTEN",
    Pin.TEMPORARY: "temporary table",
    Pin.LOCK: "advisory lock",
    Pin.CURSOR: "cursor WITH HOLD",
    Pin.LIBRARY: "LOAD",
    Pin.SETTINGS: "settings that cannot be told",
}


@dataclass(frozen=True, slots=True)
class Traces:
    """Those of a text, or of all texts since they were last asked after."""

    names: frozenset[str] = frozenset()
    """Settings that may have another value for the rest of the session, as spelt by ``setting_name``."""
    resets: bool = False
    """All settings may have been given back to what the session began with."""
    pins: Pin = Pin.NONE
    frees: bool = False
    """Something that could not be carried may be gone."""
    reverts: bool = False
    """The session may be again whom it began as; the server does not say whether "none" was set, or is what is left."""
    bound: frozenset[tuple[int, int]] = frozenset()
    """Settings whose names are parameters of the text: which one has the name, and which one says whether it is for the
    transaction only; 0: none does, and it is for the session."""

    def __bool__(self) -> bool:
        return self.resets or self.frees or bool(self.pins or self.names or self.bound)

    def __or__(self, other: Traces) -> Traces:
        return Traces(
            self.names | other.names,
            self.resets or other.resets,
            self.pins | other.pins,
            self.frees or other.frees,
            self.reverts or other.reverts,
            self.bound | other.bound,
        )

    @property
    def carried(self) -> Traces:
        """Only what can be carried."""
        return Traces(self.names, self.resets, reverts=self.reverts)

    @property
    def unbound(self) -> Traces:
        """Without the settings that parameters name."""
        return replace(self, bound=frozenset()) if self.bound else self

    def resolved(self, values: Sequence[bytes | None] = ()) -> Traces:
        """The same with the parameters of these values in place of their numbers; of those that are not there, nobody
        knows what they name."""
        if not self.bound:
            return self
        found = self.unbound
        for name, local in self.bound:
            if max(name, local) > len(values):
                found |= Traces(pins=Pin.SETTINGS)
            elif (given := values[name - 1]) is not None and not (local and values[local - 1] in _TRUE):
                found |= setting_traces(given)
        return found


NOTHING: Final = Traces()
_TRUE: Final = frozenset({b"\1", b"t", b"true", b"y", b"yes", b"on", b"1"})
"""Of a parameter of type boolean, in binary or as drivers write it."""
_PASSING: Final = frozenset({"transaction_isolation", "transaction_read_only", "transaction_deferrable", "seed"})
"""They end with the transaction; and what random numbers begin with is no state that anybody relies on later."""
IDENTITY: Final = frozenset({"session_authorization", "role"})
SPECIAL: Final[Mapping[bytes, frozenset[str]]] = {
    b"transaction": frozenset(),
    b"constraints": frozenset(),
    b"session": IDENTITY,
    b"authorization": IDENTITY,
    b"characteristics": frozenset(
        {"default_transaction_isolation", "default_transaction_read_only", "default_transaction_deferrable"}
    ),
    b"time": frozenset({"TimeZone"}),
    b"names": frozenset({"client_encoding"}),
    b"schema": frozenset({"search_path"}),
    b"xml": frozenset({"xmloption"}),
}
"""The words with which SET and RESET have settings, or none, in other spellings than their names."""


def setting_traces(name: bytes) -> Traces:
    """Those of a setting that is given a value, or given back, for the session."""
    spelt = setting_name(name.decode("utf-8", "surrogateescape"))
    if spelt in _PASSING:
        return NOTHING
    return Traces(frozenset({spelt})) if is_name(spelt) else Traces(pins=Pin.SETTINGS)
