"""A connection to Postgres that replicates: on its far side a walsender, on this one a client that has it to itself.

Postgres makes a walsender of a connection whose startup packet has ``replication``, with the settings of that packet.
So it is opened for one client, serves no other, and ends with it. What runs in it has no turns, no transactions and no
end that a pooler could wait for: all octets are passed on as they come, both ways. Where messages end is followed all
the same, since only there may anything be put in: Terminate to Postgres, an error to the client.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.boundary import Boundary
from pgtrunk_gateway.pool.backend import Backend, BackendState
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Prepared

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.connect import Opened
    from pgtrunk_gateway.pool.holder import Holder

__all__ = ["Replication", "Walsender"]

_LINGER: Final = 10.0
"""Seconds that Postgres has to take what was sent to it before the end."""


class Replication(enum.Enum):
    """Which of the two, in the words of PgBouncer's ``SHOW CLIENTS``."""

    PHYSICAL = "physical"
    """``replication=true``: the WAL of the whole server, in no database."""
    LOGICAL = "logical"
    """``replication=database``: SQL is understood too."""


class Walsender(Backend):
    """Made from a connection on which the login is done, and not read until somebody holds it (:meth:`begin`)."""

    __slots__ = ("_early", "_heard", "_said", "kind")

    def __init__(self, opened: Opened, kind: Replication, *, on_lost: Callable[[Backend, str], None]) -> None:
        handshake = opened.handshake
        super().__init__(
            opened.transport,
            handshake.target,
            handshake.key,
            Replies(Prepared(0), handshake.parameters),
            on_free=_never,
            on_lost=on_lost,
        )
        self.kind = kind
        # What it owes has no end: there may be something to cancel at any time.
        self.replies.push(owed.BATCH)
        self._said = Boundary()
        """What went to Postgres."""
        self._heard = Boundary()
        """What came from it."""
        self._early = opened.rest
        """What came from it before anybody held it."""

    @property
    def terminated(self) -> bool:
        """Whether the last that the client has said is Terminate."""
        return self._said.kind == client.TERMINATE and self._said.between

    @property
    def between(self) -> bool:
        """Whether the client has got whole messages, so that it would understand one more."""
        return self._heard.between

    @property
    def told(self) -> bool:
        """Whether there is no place for a last word: Postgres has said one, or is in the middle of a message."""
        return not self.between or self._heard.kind == server.ERROR

    # -- the octets ----------------------------------------------------------------------------------------------------

    def begin(self, holder: Holder) -> None:
        """``holder`` has it from now on to the end, and gets what Postgres has said behind its login."""
        self.lease_to(holder)
        self.resume_reading()
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        holder = self.holder
        if holder is None:
            self._early += data
            return
        self.stats.sent += len(data)
        self._heard.feed(data)
        holder.relay(data)

    def send(self, data: bytes) -> None:
        """Passes on what the client has said."""
        self.stats.received += len(data)
        self._said.feed(data)
        self.transport.write(data)

    def resume_reading(self) -> None:
        # RESUME after SUSPEND reads those too that nobody holds; this one has nobody yet to give it to.
        if self.holder is not None:
            super().resume_reading()

    # -- the end -------------------------------------------------------------------------------------------------------

    def retire(self, reason: str) -> None:
        """Nothing to do: when its client leaves, it is closed anyway."""

    def leave(self, reason: str) -> None:
        """The holder has ended, and so has this."""
        self.holder = None
        self.close(reason)

    def close(self, reason: str) -> None:
        """Ends the connection. A holder hears of it as of any loss."""
        if self.state is BackendState.CLOSED:
            return
        self.retired = reason
        if self._said.between and not self.terminated and not self.transport.is_closing():
            # Else it would become a part of what the client has not finished.
            self.transport.write(client.TERMINATE_MESSAGE)
        if self.lingers and self._said.between and not self.transport.is_closing():
            self._ended(reason)
            return
        self.transport.close()
        self._ended(reason)
        # A Postgres that does not read would keep it open as long as it likes.
        self._recovery = self._loop.call_later(_LINGER, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.hung_up = True
        self._end_recovery()
        self._ended(f"server conn crashed? ({exc})" if exc else "server conn crashed?")

    def _ended(self, reason: str) -> None:
        self._lost(reason, told=self.told)


def _never(backend: Backend) -> NoReturn:
    raise AssertionError(f"{backend!r} has been given back")
