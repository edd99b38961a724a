"""Runs one QUIC connection: datagrams in, timers, one flush per loop tick, events to streams, the end.

It works for both ends and knows no socket: whoever has one gives it ``send`` and calls ``receive``. A server gives
``accept`` too. Everything runs in the loop's thread; no call blocks or awaits.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from aioquic.quic import events
from aioquic.quic.connection import QuicConnectionState
from aioquic.quic.packet import QuicErrorCode

from pgtrunk.errors import GatewayUnreachable, SessionLost, TrunkError

from .alarm import Alarm
from .ending import explain, show
from .figures import Figures, read_figures
from .hooks import nothing
from .stream import Stream
from .streams import HandshakeConfirmed
from .transport import StreamTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar, Unpack

    from aioquic.quic.connection import NetworkAddress

    from .connection import Connection
    from .hooks import DriverHooks

    P = TypeVar("P", bound=asyncio.BaseProtocol)
    Acceptor = Callable[[StreamTransport], asyncio.BaseProtocol]

__all__ = ["ConnectionDriver"]

_ids = itertools.count(1)


class ConnectionDriver:
    """One connection, from its first datagram to the end of its draining period.

    ``send(data, addr)`` puts a datagram on the wire. ``accept(transport)`` makes the protocol of each stream that the
    peer opens, lower ids that a higher one opens implicitly included; ``connection_made`` is called after it. The other
    callbacks, all optional, are those of ``DriverHooks``. ``extra`` is what ``get_extra_info`` of all its streams
    answers: 'sockname', and 'peercert' once it is verified.
    """

    def __init__(
        self,
        quic: Connection,
        *,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes, NetworkAddress], object],
        accept: Acceptor | None = None,
        extra: dict[str, Any] | None = None,
        **hooks: Unpack[DriverHooks],
    ) -> None:
        self.id = next(_ids)
        """For people: unique among the connections of this process."""
        self.quic = quic
        self.loop = loop
        self.opened_at = loop.time()
        self.received = 0
        self.sent = 0
        """Bytes of datagrams."""
        self.streams: dict[int, StreamTransport] = {}
        self.on_ready: Callable[[ConnectionDriver], object] = hooks.get("on_ready", nothing)
        self.on_confirmed: Callable[[ConnectionDriver], object] = hooks.get("on_confirmed", nothing)
        self.on_credit: Callable[[ConnectionDriver], object] = hooks.get("on_credit", nothing)
        self.on_cid_issued: Callable[[bytes], object] = hooks.get("on_cid_issued", nothing)
        self.on_cid_retired: Callable[[bytes], object] = hooks.get("on_cid_retired", nothing)
        self.on_lost: Callable[[ConnectionDriver, TrunkError | None], object] = hooks.get("on_lost", nothing)
        self.on_closed: Callable[[ConnectionDriver, TrunkError | None], object] = hooks.get("on_closed", nothing)
        self.error: TrunkError | None = None
        self._send = send
        self._accept = accept
        self.extra = extra or {}
        self._flushing: list[StreamTransport] = []
        self._flush_due = False
        self._alarm = Alarm(loop, self._on_timer)
        self._is_ready = False
        self._is_lost = False
        self._is_closed = False
        self._credit = 0
        self._close_datagrams: list[tuple[bytes, NetworkAddress]] = []
        self._late_packets = 0
        self._keeps_alive = quic.configuration.is_client
        self._pinged_at = 0.0
        self._ping_interval = quic.limits.idle_timeout / 3
        self._handshake_deadline = self.opened_at + quic.limits.handshake_timeout
        quic.wake = self.touch
        quic.on_cid_issued = lambda cid: self.on_cid_issued(cid)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "lost" if self._is_lost else "open" if self._is_ready else "opening"
        return f"<ConnectionDriver {show(self.peername)} {state} [{len(self.streams)} streams]>"

    # -- state

    @property
    def is_ready(self) -> bool:
        """The handshake is complete, and the connection not lost."""
        return self._is_ready and not self._is_lost

    @property
    def is_lost(self) -> bool:
        """No stream can be opened any more."""
        return self._is_lost

    @property
    def is_closed(self) -> bool:
        """Nothing is sent or expected any more."""
        return self._is_closed

    @property
    def cids(self) -> list[bytes]:
        """The connection ids by which the peer may call us now."""
        return self.quic.host_cids

    @property
    def peername(self) -> NetworkAddress | None:
        """The peer's address; it changes when the peer migrates."""
        return self.quic.get_peer_address()

    @property
    def stream_credit(self) -> int:
        """How many more streams may be opened now."""
        return self.quic.stream_credit if self.is_ready else 0

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet consumed."""
        return self.quic.credit.held

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What all streams of this connection have in common."""
        if name == "peername":
            return self.peername
        if name == "quic_connection":
            return self
        return self.extra.get(name, default)

    def figures(self) -> Figures:
        """What it is doing now."""
        return read_figures(self)

    # -- what owners do

    def connect(self, addr: NetworkAddress) -> None:
        """Start the handshake, as the client."""
        self.quic.connect(addr, self.loop.time())
        self.flush()

    def receive(self, data: bytes, addr: NetworkAddress) -> None:
        """Take in a datagram that is addressed to one of ``cids``."""
        if self._is_closed:
            return
        quic = self.quic
        if quic._state is QuicConnectionState.CLOSING:
            self._repeat_close()
            return
        self.received += len(data)
        quic.receive_datagram(data, addr, self.loop.time())
        if quic._events or quic.writable or quic._close_event is not None:
            self._process()
        if quic._remote_max_streams_bidi != self._credit:
            self._credit_changed()
        self.touch()

    def touch(self) -> None:
        """Have the connection flushed, once, at the end of this loop tick."""
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)

    def open_stream(
        self, factory: Callable[[], P], *, on_closed: Callable[[BaseException | None], None] | None = None
    ) -> tuple[StreamTransport, P]:
        """Open a stream for ``factory``'s protocol; ``on_closed`` follows the protocol's ``connection_lost``.

        Raises SessionLost on a lost connection, or where there is no credit.
        """
        if self.stream_credit == 0:
            raise self.error or SessionLost(
                f"no stream can be opened on the connection with {show(self.peername)}: "
                + ("the gateway allows no more" if self.is_ready else "it is not open")
            )
        protocol = factory()
        transport = self._attach(self.quic.open_stream())
        transport.on_closed = on_closed
        transport.set_protocol(protocol)
        try:
            protocol.connection_made(transport)
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

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

    # -- what streams do

    def flush_then_drop(self, transport: StreamTransport) -> None:
        """Call ``transport.drop`` once all that it wrote has left."""
        self._flushing.append(transport)
        self.touch()

    def release(self, stream: Stream) -> None:
        """A stream's protocol has heard the last of it."""
        if self.streams.pop(stream.stream_id, None) is not None:
            self.quic.let_go(stream)
            self.touch()

    def _attach(self, stream: Stream) -> StreamTransport:
        transport = stream.transport = StreamTransport(self, stream)
        self.streams[stream.stream_id] = transport
        return transport

    # -- one flush

    def flush(self) -> None:
        """Send what is due, now. ``touch`` is better: it lets all that happens in a loop tick share datagrams."""
        self._flush_due = False
        if self._is_closed:
            return
        quic = self.quic
        datagrams = quic.datagrams_to_send(self.loop.time())
        for data, addr in datagrams:
            self.sent += len(data)
            self._send(data, addr)
        if quic._state is QuicConnectionState.CLOSING:
            self._close_datagrams = datagrams or self._close_datagrams
        if self._flushing:
            flushing, self._flushing = self._flushing, []
            for transport in flushing:
                if transport.is_flushed:
                    transport.drop()
                else:
                    self._flushing.append(transport)
        self._arm()

    def _repeat_close(self) -> None:
        """Answer a late packet with the close again (RFC 9000 section 10.2.1): the first may be lost. Ever more
        rarely."""
        self._late_packets += 1
        if self._late_packets & (self._late_packets - 1) == 0:
            for data, addr in self._close_datagrams:
                self._send(data, addr)

    # -- events

    def _process(self) -> None:
        quic = self.quic
        queue = quic._events
        while queue:
            event = queue.popleft()
            if type(event) is tuple:
                transport = event[0].transport
                if transport is not None:
                    transport.receive(event[1], event[2])
            elif type(event) is Stream:
                self._accepted(event)
            else:
                self._rare_event(event)
        if quic.writable:
            writable, quic.writable = quic.writable, []
            for stream in writable:
                if stream.transport is not None:
                    stream.transport.resume_writer()
        if quic._close_event is not None and not self._is_lost:
            self._lose(self._explain(quic._close_event))

    def _accepted(self, stream: Stream) -> None:
        transport = self._attach(stream)
        if self._accept is None or self._is_lost:
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
        else:
            transport.start(self._accept)

    def _rare_event(self, event: object) -> None:
        if isinstance(event, events.StreamReset):
            if event.stream_id in self.streams:
                self.streams[event.stream_id].on_reset(event.error_code)
        elif isinstance(event, events.StopSendingReceived):
            if event.stream_id in self.streams:
                self.streams[event.stream_id].on_stop_sending()
        elif isinstance(event, events.HandshakeCompleted):
            self._is_ready = True
            self._ping_interval = self.quic._idle_timeout() / 3
            self.on_ready(self)
        elif isinstance(event, HandshakeConfirmed):
            self.on_confirmed(self)
        elif isinstance(event, events.ConnectionIdRetired):
            self.on_cid_retired(event.connection_id)
        elif isinstance(event, events.ConnectionTerminated):
            if not self._is_lost:
                self._lose(self._explain(event))
            self._finish()

    def _credit_changed(self) -> None:
        self._credit = self.quic._remote_max_streams_bidi
        if self.is_ready:
            self.on_credit(self)

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
            if at is not None and self._keeps_alive and self.streams:
                return min(at, self._ping_at)
        return at

    @property
    def _ping_at(self) -> float:
        """When silence has lasted a third of the idle timeout."""
        return max(self.quic.heard_at, self._pinged_at) + self._ping_interval

    def _on_timer(self) -> None:
        quic, now = self.quic, self.loop.time()
        at = quic.get_timer()
        if at is not None and now >= at:
            quic.handle_timer(now)
        if not (self._is_ready or self._is_lost) and now >= self._handshake_deadline:
            self._give_up()
        elif self._keeps_alive and self.streams and self._is_ready and now >= self._ping_at:
            self._pinged_at = now
            quic.send_ping(0)
        self._process()
        self.flush()

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

    # -- the end

    def _explain(self, event: events.ConnectionTerminated) -> TrunkError:
        return explain(
            event,
            self.quic.limits,
            self.peername,
            by_peer=self.quic._state is QuicConnectionState.DRAINING,
            is_ready=self._is_ready and self._is_admitted,
        )

    @property
    def _is_admitted(self) -> bool:
        """A client that was asked for a certificate has completed its handshake before that is looked at."""
        return self.quic._handshake_confirmed or self.quic.tls._certificate_request is None

    def _lose(self, error: TrunkError | None) -> None:
        """No more streams: tell each of those there are, and the owner."""
        if self._is_lost:
            return
        self._is_lost = True
        self.error = error
        lost = error if isinstance(error, SessionLost) else SessionLost(str(error or "the connection was closed"))
        for transport in list(self.streams.values()):
            transport.lose(lost)
        self._flushing.clear()
        self.on_lost(self, error)

    def _finish(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._alarm.cancel()
        self.quic.credit.close()
        self.quic.leave_path()
        self.on_closed(self, self.error)
