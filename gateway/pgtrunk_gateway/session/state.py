"""The states of a session, and what each event does to them.

Rule 1: everything that changes a session's state is in ``TABLE``. An event that a state does not have is a fault of the
    gateway, never of a client: what clients send wrongly is found before, and becomes ``FAILED``.
Rule 2: this file knows nothing of transports, pools and messages; effects name what others have to do, in this order.
Rule 3: a session holds a backend in LEASED and HOLDING, and in no other state; it is in its pool's queue in WAITING,
    and in no other state. Whatever leaves one of these states gives back what the state had.
Rule 4: two steps are written out where they happen, since every query takes them: IDLE or BEGUN -> LEASED when a
    backend is free at once, LEASED -> IDLE when it is settled. A test holds them against this table.
Rule 5: a transaction that is BEGUN goes along with its first request, through WAITING or not. If that is refused, it is
    BEGUN again when the refusal is over, as one that has failed.
Rule 6: in session mode a session that is LEASED once stays so to its end: what would be SETTLED is KEPT. So is, in
    every mode, what is HOLDING for the settings that its request needs.

LOGIN     from the first octet to ReadyForQuery
IDLE      outside a transaction, no backend
BEGUN     the client has been told that its transaction has begun, or failed; no backend knows of it yet
WAITING   a request is there, no backend is; nothing more is read
LEASED    a backend works for the session, or is kept for it
HOLDING   the same, and nothing more is read until the backend has answered: the client has sent Flush, the gateway
          Sync in its place, and what comes next must find the batch settled or failed; or something of the gateway's
          went ahead of a request, or of the rest of a batch, and decides what becomes of that
SKIPPING  a request failed before any backend saw all of it; what comes is skipped up to Sync, as Postgres does
CLOSED    the end
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = ["TABLE", "Effect", "Event", "State", "step"]


class _Name(enum.Enum):
    # Members are compared by identity; Enum's own hash is a Python function, and tables are looked up for each query.
    __hash__ = object.__hash__


class State(_Name):
    LOGIN = enum.auto()
    IDLE = enum.auto()
    BEGUN = enum.auto()
    WAITING = enum.auto()
    LEASED = enum.auto()
    HOLDING = enum.auto()
    SKIPPING = enum.auto()
    CLOSED = enum.auto()


class Event(_Name):
    ADMITTED = enum.auto()
    """The login is complete."""
    BEGUN = enum.auto()
    """A command that only begins a transaction came, and has been answered."""
    ENDED = enum.auto()
    """That transaction is over, and has been nowhere."""
    REQUEST = enum.auto()
    """Something came that needs a backend, and none is free."""
    GRANTED = enum.auto()
    """A backend is there."""
    REFUSED = enum.auto()
    """Waiting ended without one: a timeout, or a cancel. The session goes on."""
    UNPINNED = enum.auto()
    """A batch went out with a Sync of the gateway's, or something else by which what comes next is held."""
    INSPECTED = enum.auto()
    """Nothing is owed: what a statement is on this backend is known, or the batch has failed before."""
    SETTLED = enum.auto()
    """Nothing is owed, no transaction is open."""
    KEPT = enum.auto()
    """The same, and the backend stays."""
    UNPINNED_FAILED = enum.auto()
    """The same, and the batch with the gateway's Sync has failed."""
    SYNCED = enum.auto()
    """The Sync up to which things are skipped has come."""
    SYNCED_BEGUN = enum.auto()
    """The same, within a transaction that no backend knows of."""
    LEFT = enum.auto()
    """The client said Terminate: what runs may end."""
    VANISHED = enum.auto()
    """The client is gone without a word: what runs is in vain."""
    LOST = enum.auto()
    """The backend is gone."""
    FAILED = enum.auto()
    """An error ends the session: its own fault, a timeout, the end of the gateway."""


class Effect(_Name):
    QUEUE = enum.auto()
    """Wait in the pool's queue, read no more."""
    LEAVE = enum.auto()
    """Leave the pool's queue."""
    SEND = enum.auto()
    """Send what was held, read on."""
    RESUME = enum.auto()
    """Process what was held, read on."""
    RELEASE = enum.auto()
    """Give the backend back."""
    FINISH = enum.auto()
    """Give the backend up; what runs may end."""
    RECOVER = enum.auto()
    """Give the backend up; what runs is cancelled."""
    TELL = enum.auto()
    """Send the error to the client."""
    READY = enum.auto()
    """Send ReadyForQuery."""
    CLOSE = enum.auto()
    """Close the session's transport."""


_END: Mapping[Event, tuple[State, tuple[Effect, ...]]] = {
    Event.LEFT: (State.CLOSED, (Effect.CLOSE,)),
    Event.VANISHED: (State.CLOSED, (Effect.CLOSE,)),
    Event.FAILED: (State.CLOSED, (Effect.TELL, Effect.CLOSE)),
}
_END_LEASED: Mapping[Event, tuple[State, tuple[Effect, ...]]] = {
    Event.LEFT: (State.CLOSED, (Effect.FINISH, Effect.CLOSE)),
    Event.VANISHED: (State.CLOSED, (Effect.RECOVER, Effect.CLOSE)),
    Event.FAILED: (State.CLOSED, (Effect.RECOVER, Effect.TELL, Effect.CLOSE)),
    Event.LOST: (State.CLOSED, (Effect.TELL, Effect.CLOSE)),
}

TABLE: Mapping[State, Mapping[Event, tuple[State, tuple[Effect, ...]]]] = {
    State.LOGIN: {
        Event.ADMITTED: (State.IDLE, ()),
        **_END,
    },
    State.IDLE: {
        Event.BEGUN: (State.BEGUN, ()),
        Event.REQUEST: (State.WAITING, (Effect.QUEUE,)),
        Event.GRANTED: (State.LEASED, (Effect.SEND,)),
        **_END,
    },
    State.BEGUN: {
        Event.ENDED: (State.IDLE, ()),
        Event.REQUEST: (State.WAITING, (Effect.QUEUE,)),
        Event.GRANTED: (State.LEASED, (Effect.SEND,)),
        **_END,
    },
    State.WAITING: {
        Event.GRANTED: (State.LEASED, (Effect.SEND,)),
        Event.REFUSED: (State.SKIPPING, (Effect.LEAVE, Effect.TELL, Effect.RESUME)),
        Event.LEFT: (State.CLOSED, (Effect.LEAVE, Effect.CLOSE)),
        Event.VANISHED: (State.CLOSED, (Effect.LEAVE, Effect.CLOSE)),
        Event.FAILED: (State.CLOSED, (Effect.LEAVE, Effect.TELL, Effect.CLOSE)),
    },
    State.LEASED: {
        Event.UNPINNED: (State.HOLDING, ()),
        Event.SETTLED: (State.IDLE, (Effect.RELEASE,)),
        Event.KEPT: (State.LEASED, ()),
        **_END_LEASED,
    },
    State.HOLDING: {
        Event.SETTLED: (State.IDLE, (Effect.RELEASE, Effect.RESUME)),
        Event.INSPECTED: (State.LEASED, (Effect.RESUME,)),
        Event.KEPT: (State.LEASED, (Effect.RESUME,)),
        Event.UNPINNED_FAILED: (State.SKIPPING, (Effect.RELEASE, Effect.RESUME)),
        **_END_LEASED,
    },
    State.SKIPPING: {
        Event.SYNCED: (State.IDLE, (Effect.READY,)),
        Event.SYNCED_BEGUN: (State.BEGUN, (Effect.READY,)),
        **_END,
    },
    State.CLOSED: dict.fromkeys((Event.LEFT, Event.VANISHED, Event.FAILED, Event.LOST), (State.CLOSED, ())),
}


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """The next state, and what has to be done. Raises :class:`LookupError` for what cannot happen (rule 1)."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise LookupError(f"a session that is {state.name} cannot have {event.name}") from None
