"""What a session's last error says of a retry: the gateway knows whether anything of it was under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire.hints import NOT_SENT, SENT, UNDONE
from pgtrunk_gateway.session.state import State

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.relay.lifecycle import Lifecycle

__all__ = ["advice_for", "hint_of"]

_IDLE: Final = ord("I")

_UNSAID: Final = frozenset({"08006", "25P04", "57P01"})
"""SQLSTATEs of errors that end a session in whatever it does. Those of others say it, see `pgtrunk.retries`."""


def advice_for(session: Lifecycle) -> str | None:
    """Returns what may be said of a session that ends in this moment; None where something is under way, or before it
    is logged in. What it asks for afterwards is not carried out, so it need not be known whether it does."""
    if session.state in (State.LOGIN, State.CLOSED):
        return None
    backend = session.backend
    if backend is None:
        return UNDONE if session.state is State.BEGUN else NOT_SENT
    if not backend.replies.settled or session.requests.open or session.is_amid:
        return None
    return NOT_SENT if backend.replies.status == _IDLE else UNDONE


def hint_of(error: GatewayError, advice: str | None) -> str:
    """Returns the HINT of ``error``: its own, or the advice where it ends the session and has none that is better."""
    if advice is not None and error.severity == "FATAL" and error.sqlstate in _UNSAID and error.hint in (None, SENT):
        return advice
    return error.hint or ""
