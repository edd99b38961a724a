"""Whether the gateway is still there: when a silent connection asks, and when it should have had an answer by.

1. With streams open, a PING leaves after ``QuicLimits.keepalive`` seconds in which nothing came and nothing was
   outstanding. Without streams none does, unless the owner keeps the connection: then each third of the idle timeout.
2. Everything that elicits an acknowledgement is a question, a PING as much as a query. It has gone unanswered when for
   `ANSWER` seconds, or three probe timeouts where those are longer, nothing has come at all; or, for a path that is
   dead in one direction, when so much time goes by between two looks and no acknowledgement says anything new.
3. Then the connection is suspect. Probe timeouts double, so from here on a probe leaves with each look as well: a path
   that is back is found within a second.
4. An acknowledgement of something new ends it. Whatever else is heard makes the next probe leave at once.

Of a client only: a gateway waits for its idle timeout. It knows no loop; ``now`` is an argument. RFC 9000 section
10.1.2, RFC 9002 section 6.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["ANSWER", "Keepalive"]

ANSWER = 0.9
"""Seconds within which a question is answered. At 30 ms three probes have followed it by then. With the two seconds of
silence before a PING it makes less than three, for timers are late."""

LATE = 0.2
"""Seconds of lateness by which a look shows that the loop stood still: what came meanwhile may not be read yet, since
some loops run timers first. So it looks once more ..."""

AGAIN = 0.05
"""... after so many seconds."""

LONGEST_ANSWER = 2.5
"""Seconds that three probe timeouts may come to, where the round trip takes that long."""


class Keepalive:
    """Watches one connection of a client, and has it ask."""

    def __init__(self, quic: Connection) -> None:
        self._quic = quic
        self.is_suspect = False
        """Whether a question has gone unanswered."""
        self.is_kept = False
        """Whether the connection is to live on without streams."""
        self._answer = ANSWER
        self.pings = 0
        """PINGs that silence was the reason for."""
        self._acked = -1
        self._open_since: float | None = None
        self._was_late = False
        self._since = 0.0
        self._third = quic.limits.idle_timeout / 3
        self._interval = min(self._third, quic.limits.keepalive)

    def agree(self) -> None:
        """The handshake is over: the idle timeout is the shorter one of the two ends'."""
        self._third = self._quic._idle_timeout() / 3
        self._interval = min(self._third, self._quic.limits.keepalive)

    def next_look(self, *, has_streams: bool) -> float:
        """When ``look`` is to be called. Asked for with each flush; a time in the past comes of the first question
        after a while without, and costs one look."""
        quic = self._quic
        since = quic.heard_at if quic.heard_at > self._since else self._since
        if quic._app_space.ack_eliciting_in_flight:
            return since + self._answer
        return since + (self._interval if has_streams else self._third)

    def look(self, now: float, *, has_streams: bool) -> None:
        """See whether an answer is overdue, or a question due."""
        quic = self._quic
        self._answer = min(max(ANSWER, 3 * quic._probe_timeout()), LONGEST_ANSWER)
        if self._is_answered:
            self._note_answer()
        if not self._asks:
            interval = self._interval if has_streams else self._third
            if (has_streams or self.is_kept) and now >= max(quic.heard_at, self._since) + interval:
                self._since = now
                self.pings += 1
                quic.send_ping(0)
            return
        if self._open_since is None:
            self._open_since = now
        silent_since = quic.silent_since
        since = self._open_since if silent_since is None else min(silent_since, self._open_since)
        if now < since + self._answer:
            self._since = since
        elif self.is_suspect or self._was_late:
            if now >= self._since + self._answer:
                self._call_suspect(now)
        elif now > since + self._answer + LATE:
            self._was_late = True
            self._since = now + AGAIN - self._answer
        else:
            self._call_suspect(now)

    def _call_suspect(self, now: float) -> None:
        self.is_suspect, self._was_late = True, False
        self._since = now
        self._quic._send_probe()

    def heard(self) -> None:
        """Something came while the connection was suspect."""
        if self._is_answered:
            self._note_answer()
        else:
            self._quic._send_probe()

    @property
    def _asks(self) -> bool:
        """Whether anything is outstanding. A probe timeout gives the last packet up for the probe that is about to
        leave."""
        quic = self._quic
        return bool(quic._app_space.ack_eliciting_in_flight or quic._probe_pending)

    @property
    def _is_answered(self) -> bool:
        return self._quic._app_space.largest_acked_packet != self._acked or not self._asks

    def _note_answer(self) -> None:
        self.is_suspect = self._was_late = False
        self._acked = self._quic._app_space.largest_acked_packet
        self._open_since = None
