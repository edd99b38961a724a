"""When a connection wants to be looked at again, without the detours of the general case.

aioquic asks all three packet number spaces for their alarms, after each flush. Once the handshake is confirmed there is
one space left, and one validated path. RFC 9002 section 6.2 and RFC 9000 section 10.1.
"""

from __future__ import annotations

from math import inf

from aioquic.quic.connection import QuicConnectionState

from .streams import StreamTable

__all__ = ["Timers"]

GRANULARITY = 0.001
"""Seconds; RFC 9002 section 6.1.2."""


class Timers(StreamTable):
    """The part of a connection that says when its next timer is due."""

    _chores_at = inf
    """When the layers above want ``_do_chores`` to be called: probes, of a path or of its size, wait for an answer."""

    def get_timer(self) -> float | None:
        """Return when ``handle_timer`` is to be called, by the connection's clock; None for never."""
        if (
            not self._handshake_confirmed
            or self._state is not QuicConnectionState.CONNECTED
            or not self._network_paths[0].is_validated
        ):
            due = super().get_timer()
            return due if due is None else min(due, self._chores_at)
        space, loss, at = self._app_space, self._loss, self._close_at
        assert at is not None
        if space.ack_at is not None and space.ack_at < at:
            at = space.ack_at
        loss_at = space.loss_time
        if loss_at is None and (space.ack_eliciting_in_flight or not loss.peer_completed_address_validation):
            sent_at: float = loss._time_of_last_sent_ack_eliciting_packet or 0.0
            loss_at = sent_at + self._probe_timeout() * (1 << loss._pto_count)
        self._loss_at = loss_at
        if loss_at is not None and loss_at < at:
            at = loss_at
        if self._pacing_at is not None and self._pacing_at < at:
            at = self._pacing_at
        return at if at < self._chores_at else self._chores_at

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        super().handle_timer(now)
        if now >= self._chores_at:
            self._do_chores(now)

    def _do_chores(self, now: float) -> None:
        """``_chores_at`` has come."""

    @property
    def silent_since(self) -> float | None:
        """When the first packet left that asks for an answer, of those since the last one came; None where none has."""
        if not self._ack_eliciting_sent_since_receipt or self._close_at is None:
            return None
        return self._close_at - self._idle_timeout()

    def _probe_timeout(self) -> float:
        loss = self._loss
        if not loss._rtt_initialized:
            return loss.get_probe_timeout()
        spread: float = 4 * loss._rtt_variance
        if spread < GRANULARITY:
            spread = GRANULARITY
        return loss._rtt_smoothed + spread + loss.max_ack_delay

    def _idle_timeout(self) -> float:
        """Seconds of silence after which the connection is over: asked for with each packet that comes."""
        agreed = self._configuration.idle_timeout
        remote = self._remote_max_idle_timeout
        if remote is not None and remote < agreed:
            agreed = remote
        least = 3 * self._probe_timeout()
        return agreed if agreed > least else least
