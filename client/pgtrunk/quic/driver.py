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
from aioquic.quic.connection import stream_is_unidirectional as is_one_way

from pgtrunk.errors import CertificateError, SessionLost

from .control_stream import ControlStreams
from .ending import show
from .figures import Figures, read_figures
from .hooks import nothing
from .lifetime import Lifetime
from .stream import Stream
from .streams import HandshakeConfirmed
from .transport import StreamTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar, Unpack

    from aioquic.quic.connection import NetworkAddress

    from pgtrunk.errors import TrunkError

    from .connection import Connection
    from .hooks import DriverHooks

    P = TypeVar("P", bound=asyncio.BaseProtocol)
    Acceptor = Callable[[StreamTransport], asyncio.BaseProtocol]

__all__ = ["ConnectionDriver"]

_ids = itertools.count(1)


class ConnectionDriver(Lifetime):
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
        super().__init__(quic, loop=loop, send=send)
        self.id = next(_ids)
        """For people: unique among the connections of this process."""
        self.received = 0
        self.sent = 0
        """Bytes of datagrams."""
        self.on_ready: Callable[[ConnectionDriver], object] = hooks.get("on_ready", nothing)
        self.on_confirmed: Callable[[ConnectionDriver], object] = hooks.get("on_confirmed", nothing)
        self.on_credit: Callable[[ConnectionDriver], object] = hooks.get("on_credit", nothing)
        self.on_cid_issued: Callable[[bytes], object] = hooks.get("on_cid_issued", nothing)
        self.on_cid_retired: Callable[[bytes], object] = hooks.get("on_cid_retired", nothing)
        self.on_suspect = hooks.get("on_suspect", nothing)
        self.on_pong: Callable[[int], object] = nothing
        """Called with the number of a PING that was acknowledged."""
        self.on_lost: Callable[[ConnectionDriver, TrunkError | None], object] = hooks.get("on_lost", nothing)
        self.on_closed: Callable[[ConnectionDriver, TrunkError | None], object] = hooks.get("on_closed", nothing)
        self.control = ControlStreams(self)
        self.control.on_goaway = hooks.get("on_goaway", nothing)
        self.control.on_stats = hooks.get("on_stats", nothing)
        self.make_transport: Callable[[ConnectionDriver, Stream], StreamTransport] = StreamTransport
        """Of each stream, whoever opened it."""
        self._accept = accept
        self.extra = extra or {}
        self._flushing: list[StreamTransport] = []
        self._flush_due = False
        self._credit = 0
        quic.wake = self.touch
        quic.on_cid_issued = lambda cid: self.on_cid_issued(cid)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "lost" if self._is_lost else "open" if self._is_ready else "opening"
        return f"<ConnectionDriver {show(self.peername)} {state} [{len(self.streams)} streams]>"

    # -- state

    @property
    def cids(self) -> list[bytes]:
        """The connection ids by which the peer may call us now."""
        return self.quic.host_cids

    @property
    def stream_credit(self) -> int:
        """How many more streams may be opened now."""
        return self.quic.stream_credit if self.is_ready or self.is_early else 0

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet consumed."""
        return self.quic.credit.held

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What all streams of this connection have in common."""
        if name == "peername":
            # What counts against an address must not count against one that the peer has only claimed.
            return self.quic.proved_address or self.peername
        if name == "quic_connection":
            return self
        if name == "transport":
            return "quic"
        if name == "early":
            return not self.is_confirmed
        return self.extra.get(name, default)

    def figures(self) -> Figures:
        """What it is doing now."""
        return read_figures(self)

    # -- what owners do

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
        if self.is_suspect and self.keepalive is not None:
            self.keepalive.heard()
            self._note_health(self.keepalive)
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
                + ("the gateway allows no more" if self.is_ready or self.is_early else "it is not open")
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
        transport = stream.transport = self.make_transport(self, stream)
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
        if is_one_way(stream.stream_id):
            self.control.accept(stream)
            return
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
            else:
                self.control.on_reset(event.stream_id)
        elif isinstance(event, events.StopSendingReceived):
            if event.stream_id in self.streams:
                self.streams[event.stream_id].on_stop_sending()
        elif isinstance(event, events.HandshakeCompleted):
            self._complete(event)
        elif isinstance(event, HandshakeConfirmed):
            self.on_confirmed(self)
        elif isinstance(event, events.PingAcknowledged):
            self.on_pong(event.uid)
        elif isinstance(event, events.ConnectionIdRetired):
            self.on_cid_retired(event.connection_id)
        elif isinstance(event, events.ConnectionTerminated):
            if not self._is_lost:
                self._lose(self._explain(event))
            self._finish()

    def _complete(self, event: events.HandshakeCompleted) -> None:
        self._is_ready = True
        self.was_resumed, self.took_early = event.session_resumed, event.early_data_accepted
        if self.keepalive is not None:
            self.keepalive.agree()
        self.control.begin()
        self.on_ready(self)
        waiting, self._waits_for_confirmation = self._waits_for_confirmation, []
        for callback in waiting:
            try:
                callback()
            except Exception as exc:
                # One session's mistake, as in transport.py, must not end the connection that others share.
                self.loop.call_exception_handler({"message": "a session failed on a handshake's end", "exception": exc})

    def _credit_changed(self) -> None:
        self._credit = self.quic._remote_max_streams_bidi
        if self.is_ready:
            self.on_credit(self)

    # -- the end

    def _lose(self, error: TrunkError | None) -> None:
        """No more streams: tell each of those there are, and the owner."""
        if self._is_lost:
            return
        self._is_lost = True
        self._waits_for_confirmation.clear()
        self.error = error
        if not self._is_ready or (isinstance(error, CertificateError) and not self._is_admitted):
            # Without our Finished, and with a certificate that it refuses, a gateway acts on nothing that it was sent.
            self.quic.unsend()
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
