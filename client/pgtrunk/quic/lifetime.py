"""The life of one QUIC connection: its state, its timers, how it is opened and closed.

The lower half of :class:`~pgtrunk.quic.driver.ConnectionDriver`, which has the streams, and what is sent and received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import QuicConnectionState
from aioquic.quic.packet import QuicErrorCode

from pgtrunk.errors import GatewayUnreachable

from .alarm import Alarm
from .ending import explain, show
from .hooks import nothing
from .keepalive import Keepalive
from .trust import certified_names

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aioquic.quic import events
    from aioquic.quic.connection import NetworkAddress

    from pgtrunk.errors import TrunkError

    from .connection import Connection
    from .transport import StreamTransport

__all__ = ["Lifetime"]


class Lifetime:
    """Opening, ready, lost, closed; in this order, and some may be left out."""

    def __init__(
        self, quic: Connection, *, loop: asyncio.AbstractEventLoop, send: Callable[[bytes, NetworkAddress], object]
    ) -> None:
        self.quic = quic
        self.loop = loop
        self.opened_at = loop.time()
        self.streams: dict[int, StreamTransport] = {}
        self.error: TrunkError | None = None
        self._send = send
        self._alarm = Alarm(loop, self._on_timer)
        self.was_resumed = False
        """Whether the handshake was shortened by a session ticket; known once the connection is ready."""
        self.took_early = False
        """Whether the server has taken in early data; known once the connection is ready."""
        self._waits_for_confirmation: list[Callable[[], object]] = []
        self._sends_early = False
        self._is_ready = False
        self._is_lost = False
        self._is_closed = False
        self._close_datagrams: list[tuple[bytes, NetworkAddress]] = []
        self._late_packets = 0
        self.keepalive = Keepalive(quic) if quic.configuration.is_client else None
        """A client's; None on a server."""
        self.is_suspect = False
        """Whether the other end owes an answer for longer than one takes. Of a client: a server waits for its idle
        timeout."""
        self.on_suspect: Callable[[bool], object] = nothing
        self._handshake_deadline = self.opened_at + quic.limits.handshake_timeout

    def flush(self) -> None:
        """Send what is due, now."""
        raise NotImplementedError

    def _process(self) -> None:
        """Take in what has come of it."""
        raise NotImplementedError

    def _lose(self, error: TrunkError | None) -> None:
        """No more streams."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Nothing is sent or expected any more."""
        raise NotImplementedError

    # -- state

    @property
    def is_ready(self) -> bool:
        """The handshake is complete, and the connection not lost."""
        return self._is_ready and not self._is_lost

    @property
    def is_confirmed(self) -> bool:
        """The handshake was completed. Until then all that a server hears may be a replay of early data, and is not to
        be acted on (RFC 8446 section 8); what a client asks for has had no effect."""
        return self._is_ready

    @property
    def is_early(self) -> bool:
        """A client may open streams before the handshake is complete: what they say leaves as early data (0-RTT)."""
        return self._sends_early and not (self._is_ready or self._is_lost)

    def call_when_confirmed(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, as soon as ``is_confirmed``: at once where it is; never where the connection is lost
        first."""
        if self._is_ready:
            callback()
        elif not self._is_lost:
            self._waits_for_confirmation.append(callback)

    @property
    def is_lost(self) -> bool:
        """No stream can be opened any more."""
        return self._is_lost

    @property
    def is_closed(self) -> bool:
        """Nothing is sent or expected any more."""
        return self._is_closed

    @property
    def keeps_idle(self) -> bool:
        """Whether a client keeps the connection alive though it has no streams."""
        return self.keepalive is not None and self.keepalive.is_kept

    @keeps_idle.setter
    def keeps_idle(self, kept: bool) -> None:
        if self.keepalive is not None:
            self.keepalive.is_kept = kept
            self._arm()

    @property
    def peername(self) -> NetworkAddress | None:
        """The peer's address; it changes when the peer migrates."""
        return self.quic.get_peer_address()

    # -- its beginning and end

    def connect(self, addr: NetworkAddress) -> None:
        """Start the handshake, as the client."""
        self.quic.connect(addr, self.loop.time())
        self._sends_early = self.quic.sends_early
        self.flush()

    def close(self, code: int = QuicErrorCode.NO_ERROR, reason: str = "") -> None:
        """Close the connection with an application error code; streams get SessionLost. Late packets are still
        answered."""
        if self._is_lost:
            return
        if not self.quic._network_paths:
            self.abandon(None)
            return
        self.flush()
        if not self._is_lost:
            self.quic.close(code, reason_phrase=reason)
            self._lose(None)
            self.flush()

    def abandon(self, error: TrunkError | None) -> None:
        """Forget the connection without a word to the peer."""
        self._lose(error)
        self._finish()

    def _repeat_close(self) -> None:
        """Answer a late packet with the close again (RFC 9000 section 10.2.1): the first may be lost. Ever more
        rarely."""
        self._late_packets += 1
        if self._late_packets & (self._late_packets - 1) == 0:
            for data, addr in self._close_datagrams:
                self._send(data, addr)

    def _explain(self, event: events.ConnectionTerminated) -> TrunkError:
        tls = self.quic.tls
        leaf = tls._peer_certificate
        return explain(
            event,
            self.quic.limits,
            self.peername,
            by_peer=self.quic._state is QuicConnectionState.DRAINING,
            is_ready=self._is_ready and self._is_admitted,
            presented=() if leaf is None else certified_names(leaf),
            expected=tls._server_name,
        )

    @property
    def _is_admitted(self) -> bool:
        """A client that was asked for a certificate has completed its handshake before that is looked at."""
        return self.quic._handshake_confirmed or self.quic.tls._certificate_request is None

    # -- timers

    def _arm(self) -> None:
        at = self._next_wakeup()
        if at is None or self._is_closed:
            self._alarm.cancel()
        else:
            self._alarm.set(at)

    def _next_wakeup(self) -> float | None:
        at = self.quic.get_timer()
        if not self._is_lost:
            if not self._is_ready:
                return self._handshake_deadline if at is None else min(at, self._handshake_deadline)
            keepalive = self.keepalive
            if at is not None and keepalive is not None and (self.streams or keepalive.is_kept):
                return min(at, keepalive.next_look(has_streams=bool(self.streams)))
        return at

    def _on_timer(self) -> None:
        quic, now = self.quic, self.loop.time()
        at = quic.get_timer()
        if at is not None and now >= at:
            quic.handle_timer(now)
        if not (self._is_ready or self._is_lost) and now >= self._handshake_deadline:
            self._give_up()
        self._process()
        if self.keepalive is not None and self.is_ready:
            self.keepalive.look(now, has_streams=bool(self.streams))
            self._note_health(self.keepalive)
        self.flush()

    def _note_health(self, keepalive: Keepalive) -> None:
        if self.is_suspect is not keepalive.is_suspect and not self._is_lost:
            self.is_suspect = keepalive.is_suspect
            self.on_suspect(self.is_suspect)

    def _give_up(self) -> None:
        error = GatewayUnreachable(
            f"no QUIC connection with {show(self.peername)}: the handshake did not complete within "
            f"{self.quic.limits.handshake_timeout:g} s (handshake_timeout)"
        )
        if self.quic._network_paths:
            self.quic.close(QuicErrorCode.NO_ERROR, reason_phrase="handshake timeout")
            self._lose(error)
        else:
            self.abandon(error)
