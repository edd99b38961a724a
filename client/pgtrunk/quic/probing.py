"""The size of a connection's datagrams: sends the probes that pmtu.py asks for, and follows what it finds.

A probe is a datagram of its own, with a PING and PADDING, that loss detection does not know as in flight: its loss says
something of the path's size and nothing of its load, so it touches neither the congestion window nor probe timeouts
(RFC 9000 section 14.4). It is paced, and there is one at a time, in some round trips: a window that is full, as in the
transfers that it is for, does not keep it back. The peer acknowledges it like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.tls import Epoch

from .pmtu import BASE, Search, header_size
from .recovery import FlooredReno
from .sending import Sending
from .timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioquic.quic.connection import NetworkAddress
    from aioquic.quic.packet_builder import QuicSentPacket

    from .short import ShortBuilder

__all__ = ["Probing"]

PATIENCE = 3
"""Probe timeouts after which a probe that nobody acknowledged is taken for lost."""


class Probing(Timers, Sending):
    """The part of a connection that knows how large its datagrams may be."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.search = Search()
        self.proves_sizes = True
        """False where our kernel may send fragments: then a large datagram that arrives proves nothing."""
        self._next_event = 0
        self._last_lost = 0

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        self.begin_search()

    def begin_search(self) -> None:
        """Nothing is known of the path that is in use now."""
        header = header_size(str(self._network_paths[0].addr[0]))
        # Given for IPv4; a datagram of the same size on the link holds less over IPv6.
        limit = self.limits.max_datagram_size - (header - header_size(""))
        is_wanted = self.proves_sizes and self.limits.path_mtu == "auto"
        self.search.begin(min(limit, self._remote_max_datagram) if is_wanted else BASE, header)
        self._follow()

    # -- probes

    def _add_probe(self, datagrams: list[tuple[bytes, NetworkAddress]], now: float) -> None:
        """Add the probe that is due, if one is; called with a flush, once ``_probe_due`` is set."""
        self._probe_due = False
        path = self._network_paths[0]
        if not self._handshake_confirmed or not path.is_validated:
            return
        search = self.search
        if self._filled:
            self._filled = False
            search.filled(now)
        size = search.probe
        if not size:
            return

        def write(builder: ShortBuilder) -> None:
            builder.start_frame(QuicFrameType.PING, 1, self._on_probe_delivery, (size, search.epoch))

        search.sent(now, PATIENCE * self._probe_timeout())
        datagram = self._lone_datagram(size, self._peer_cid.cid, write, now)
        self.pacer.charge(size)
        path.bytes_sent += size
        datagrams.append((datagram, path.addr))
        self._set_chores()

    def _lone_datagram(self, size: int, peer_cid: bytes, write: Callable[[ShortBuilder], None], now: float) -> bytes:
        """Return a datagram of ``size`` octets with the frames of ``write``, outside of congestion control."""
        builder = self._make_builder(size)
        builder.begin_lone(self, peer_cid, self._app_crypto)
        write(builder)
        (datagram,), (packet,) = builder.flush()
        packet.is_ack_eliciting = packet.in_flight = False
        packet.sent_time = now
        self._packet_number += 1
        self._loss.on_packet_sent(packet=packet, space=self._app_space)
        return datagram

    def _on_probe_delivery(self, delivery: QuicDeliveryState, size: int, epoch: int) -> None:
        if epoch != self.search.epoch:
            return
        if delivery is QuicDeliveryState.ACKED:
            self.search.acked(size)
        else:
            self.search.lost(size)
        self._follow()

    def _do_chores(self, now: float) -> None:
        super()._do_chores(now)
        self.search.expired(now)
        self._follow()

    def _follow(self) -> None:
        """Send datagrams of the size that the search has come to, and its next probe."""
        size = self.search.size
        if size != self._max_datagram_size:
            self._max_datagram_size = size
            self.pacer.resize(size)
            self._reno.resize(size)
        self._probe_due = self._probe_due or bool(self.search.probe)
        self._set_chores()

    def _set_chores(self) -> None:
        self._chores_at = self.search.at

    # -- what becomes of large datagrams

    def datagram_refused(self, size: int) -> None:
        """Our own kernel takes no datagrams of that size: EMSGSIZE."""
        before = self.search.size
        self.search.refused(size)
        self._follow()
        if self.search.size < before:
            self._send_again_smaller()
        self.wake()

    def packets_gone(self, packets: Sequence[QuicSentPacket], *, expired: bool) -> None:
        """Packets are taken for lost, or have ``expired`` at a probe timeout."""
        if self.search.size == BASE:
            return
        large = [packet for packet in packets if packet.sent_bytes > BASE and packet.epoch is Epoch.ONE_RTT]
        # Of losses only those count which were sent after the last that did: one queue that runs over is one event. At
        # a probe timeout nothing at all has come since the last one.
        if not large or not (expired or large[-1].packet_number >= self._next_event):
            return
        self._next_event, self._last_lost = self._packet_number, large[-1].packet_number
        if self.search.large_lost(large[-1].sent_time or 0.0):
            self._reno.watch(None)
            self._follow()
            self._send_again_smaller()
        else:
            self._reno.watch(self._on_acked)

    def _on_acked(self, packet: QuicSentPacket) -> None:
        """While large ones were lost: whether one gets through after all."""
        if packet.sent_bytes > BASE and packet.epoch is Epoch.ONE_RTT and packet.packet_number > self._last_lost:
            self.search.large_acked()
            self._reno.watch(None)

    def _send_again_smaller(self) -> None:
        """What is under way in large datagrams will not arrive, and it is not a queue that lost them."""
        space = self._app_space
        large = [packet for packet in space.sent_packets.values() if packet.in_flight and packet.sent_bytes > BASE]
        # It is no congestion event, and nothing else would have a time.
        self._loss._on_packets_lost(congestion_event=False, now=0.0, packets=large, space=space)

    @property
    def _reno(self) -> FlooredReno:
        reno = self._loss._cc
        assert isinstance(reno, FlooredReno)
        return reno
