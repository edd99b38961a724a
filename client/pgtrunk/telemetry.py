"""What a trunk counts, and the picture of it that `StreamManager.stats` returns. Plain numbers, no dependency.

Each field says what it means, and whether it is a number of now or a total, to people and to exporters alike, see
metric.py. To add one: count it in `Counters`, give the area that it belongs to a field of it, and fill that in
picture.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgtrunk.histogram import Histogram
from pgtrunk.metric import counter, each, gauge, label
from pgtrunk.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgtrunk.quic.figures import Figures

__all__ = [
    "ConnectionStats",
    "Counters",
    "GatewayStats",
    "PathStats",
    "RedundancyStats",
    "SessionStats",
    "TcpStats",
    "TransferStats",
    "TrunkStats",
    "WaitStats",
]


@dataclass(slots=True)
class Counters:
    """Totals since the trunk was opened; they only grow."""

    connections_opened: int = 0
    connections_failed: int = 0
    connections_lost: int = 0
    reconnects: int = 0
    streams_opened: int = 0
    streams_closed: int = 0
    streams_lost: int = 0
    acquires_failed: int = 0
    acquire_wait_max: float = 0.0
    acquire_waits: Histogram = field(default_factory=Histogram)
    cancels_sent: int = 0
    connections_suspected: int = 0
    connections_replaced: int = 0
    connections_resumed: int = 0
    connections_early: int = 0
    connections_refused_early: int = 0
    goaways: int = 0
    sessions_moved: int = 0
    round_trips_saved: int = 0
    transferred: TransferStats = field(default_factory=lambda: TransferStats())
    """By connections that are gone."""

    @property
    def acquire_wait(self) -> float:
        """Seconds, all together."""
        return self.acquire_waits.total

    def acquired(self, waited: float) -> None:
        self.acquire_waits.add(waited)
        self.acquire_wait_max = max(self.acquire_wait_max, waited)

    def gone(self, figures: Figures | None) -> None:
        """A connection is gone, and this is the last that is known of it; None: it was not QUIC's."""
        if figures is not None:
            self.transferred = TransferStats.of((figures,), self.transferred)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStats:
    """The connections to the gateway."""

    connecting: int = gauge("Connections by state.", name="connections", state="connecting")
    """Those whose handshake runs."""
    ready: int = gauge("Connections by state.", name="connections", state="ready")
    leaving: int = gauge("Connections by state.", name="connections", state="leaving")
    """Those that are to be left, and that still carry sessions; not among those ready."""
    suspect: int = gauge("Connections by state.", name="connections", state="suspect")
    """Those that owe an answer; not among those ready. They get no more sessions until they give it."""
    closing: int = gauge("Connections by state.", name="connections", state="closing")
    """Those that were closed here and whose socket is not gone yet."""
    max: int = gauge("Connections at most, the setting.")
    opened: int = counter("Connections that were opened.")
    failed: int = counter("Attempts that did not become a connection.")
    lost: int = counter("Connections that ended otherwise than by being closed here or by being idle.")
    reconnects: int = counter(
        "Times that the gateway was reached again after a connection was lost, or not to be had.", name="reconnects"
    )
    goaways: int = counter("Connections that the gateway has asked to be left.", name="goaways")
    suspected: int = counter("Times that a connection owed an answer for too long.")
    replaced: int = counter("Connections that were left for others, opened in their place.")
    """For their age (max_lifetime), or since another gateway is better."""
    resumed: int = counter("Connections whose handshake was shortened by a session ticket.")
    early: int = counter("Connections whose early data was taken by the gateway.")
    refused_early: int = counter("Connections whose early data was refused, and sent again after the handshake.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStats:
    """One gateway of the list, over QUIC; over TCP with ``transport="tcp"``."""

    gateway: str = label("")
    connections: int = gauge("Connections to the gateway, those that are to be left not among them.")
    alive: int = gauge("0 where all addresses of the gateway have failed, and none has answered since.", default=1)
    opened: int = counter("Connections that were opened to the gateway.")
    failures: int = counter("Attempts that failed at the gateway, and connections to it that were lost.")
    last_error: str | None = None
    """What was wrong last; it may be over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """The streams that carry sessions, and those of cancels."""

    in_use: int = gauge("Streams that carry sessions. Cancels are not among them.")
    max: int = gauge("Sessions at most, by the settings.")
    asking: int = gauge("Sessions whose last request is not answered yet; 0 without timings.")
    opened: int = counter("Sessions that were opened.")
    closed: int = counter("Sessions that ended by a close of either side.")
    lost: int = counter("Sessions that ended with an error: reset, or lost with their connection.")
    moved: int = counter("Idle sessions of pools that were ended to be opened on another connection.")
    cancels_in_use: int = gauge("Streams that carry cancels.", name="cancels_in_use")
    cancels_sent: int = counter("Cancels that were sent.", name="cancels_sent")
    round_trips_saved: int = counter("Round trips that opening sessions would have taken more over TCP and TLS 1.3.")
    """Three for each session: TCP, SSLRequest, TLS. Less one where it had to wait for its connection's handshake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStats:
    """Callers that wait for a stream."""

    waiting: int = gauge("Callers that wait for a stream.")
    failed: int = counter("Callers that got an error instead of a stream; those who were cancelled are not counted.")
    total: float = counter("Time that callers spent waiting for their stream.", unit="seconds", name="waits")
    longest: float = gauge("The longest of these waits that ended with a stream.", unit="seconds", default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStats:
    """One connection that is open, and the way that it takes."""

    connection: int = label(0)
    """Its number; never used again."""
    peer: str = label("")
    """The gateway's address."""
    sessions: int = gauge("Sessions on the connection.")
    age: float = gauge("Time since the connection's first packet.", unit="seconds", default=0.0)
    rtt: float = gauge("Round trip time, smoothed (RFC 9002 section 5.3).", unit="seconds", default=0.0)
    rtt_min: float = gauge("The least round trip time.", unit="seconds", default=0.0)
    rtt_latest: float = gauge("The last round trip time.", unit="seconds", default=0.0)
    congestion_window: int = gauge("What may be in flight.", unit="bytes")
    in_flight: int = gauge("What is sent and neither acknowledged nor given up.", unit="bytes")
    packets_sent: int = counter("Packets sent on the connection.")
    packets_lost: int = counter("Of these, packets that were taken for lost (RFC 9002 section 6.1).")
    datagram_size: int = gauge("What a datagram may hold, as the path has proved.", unit="bytes")
    moves: int = counter("Times that the connection went on from another address of this machine.")

    @classmethod
    def of(cls, connection: int, sessions: int, figures: Figures) -> PathStats:
        return cls(
            connection=connection,
            peer=figures.peer,
            sessions=sessions,
            age=figures.age,
            rtt=figures.rtt,
            rtt_min=figures.rtt_min,
            rtt_latest=figures.rtt_latest,
            congestion_window=figures.congestion_window,
            in_flight=figures.bytes_in_flight,
            packets_sent=figures.packets_sent,
            packets_lost=figures.packets_lost,
            datagram_size=figures.datagram_size,
            moves=figures.moves,
        )

    @property
    def loss(self) -> float:
        """The share of packets that were taken for lost, 0 to 1."""
        return self.packets_lost / self.packets_sent if self.packets_sent else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundancyStats:
    """What came of sending small messages twice: this end's, over all connections. Messages, but for ``losses``."""

    eligible: int = counter("Small messages that left for the first time while losses were being seen.")
    copies: int = counter("Messages that were sent a second time.")
    suppressed_guard: int = counter("Copies not sent, since losses looked like congestion.")
    suppressed_window: int = counter("Copies not sent, since half the congestion window was in flight.")
    spurious: int = counter("Messages of which copy and original both came.")
    losses: int = counter("Packets lost, copies among them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """What has gone over the network, connections that are gone included."""

    sent: int = counter("UDP payload sent.", unit="bytes")
    received: int = counter("UDP payload received.", unit="bytes")
    packets_sent: int = counter("Packets sent.")
    packets_lost: int = counter("Packets that were taken for lost (RFC 9002 section 6.1).")
    moves: int = counter("Times that a connection went on from another address of this machine.")

    @classmethod
    def of(cls, connections: Iterable[Figures], before: TransferStats) -> TransferStats:
        """What these connections have transferred, and what had been ``before``."""
        figures = list(connections)
        return cls(
            sent=before.sent + sum(each.sent for each in figures),
            received=before.received + sum(each.received for each in figures),
            packets_sent=before.packets_sent + sum(each.packets_sent for each in figures),
            packets_lost=before.packets_lost + sum(each.packets_lost for each in figures),
            moves=before.moves + sum(each.moves for each in figures),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpStats:
    """Sessions over TLS over TCP, for networks that let no UDP through."""

    in_use: int = gauge("TCP connections that are open or being opened, cancels among them.")
    max: int = gauge("Sessions over TCP at most, the setting.")
    udp_blocked: int = gauge("1 while new sessions go over TCP since UDP is not answered.", name="udp_blocked")
    fallbacks: int = counter("Times that UDP was not answered, and TCP was.")
    returns: int = counter("Times that UDP was answered again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkStats:
    """One moment of a trunk: numbers of now, and totals since it was opened. Times are in seconds.

    The names without an area are those of before there were areas.
    """

    connections: ConnectionStats = ConnectionStats()
    gateways: tuple[GatewayStats, ...] = each(GatewayStats)
    """In the order of the list."""
    sessions: SessionStats = SessionStats()
    waits: WaitStats = WaitStats()
    stages: Stages = Stages()
    path: tuple[PathStats, ...] = each(PathStats)
    """By connection, those that are ready or being left."""
    redundancy: RedundancyStats = RedundancyStats()
    transfer: TransferStats = TransferStats()
    tcp: TcpStats = TcpStats()

    @property
    def connections_connecting(self) -> int:
        return self.connections.connecting

    @property
    def connections_ready(self) -> int:
        return self.connections.ready

    @property
    def connections_leaving(self) -> int:
        return self.connections.leaving

    @property
    def connections_closing(self) -> int:
        return self.connections.closing

    @property
    def connections_max(self) -> int:
        return self.connections.max

    @property
    def connections_opened(self) -> int:
        return self.connections.opened

    @property
    def connections_failed(self) -> int:
        return self.connections.failed

    @property
    def connections_lost(self) -> int:
        return self.connections.lost

    @property
    def goaways(self) -> int:
        return self.connections.goaways

    @property
    def streams_in_use(self) -> int:
        return self.sessions.in_use

    @property
    def streams_max(self) -> int:
        return self.sessions.max

    @property
    def streams_opened(self) -> int:
        return self.sessions.opened

    @property
    def streams_closed(self) -> int:
        return self.sessions.closed

    @property
    def streams_lost(self) -> int:
        return self.sessions.lost

    @property
    def sessions_moved(self) -> int:
        return self.sessions.moved

    @property
    def cancels_in_use(self) -> int:
        return self.sessions.cancels_in_use

    @property
    def cancels_sent(self) -> int:
        return self.sessions.cancels_sent

    @property
    def waiting(self) -> int:
        return self.waits.waiting

    @property
    def acquires_failed(self) -> int:
        return self.waits.failed

    @property
    def acquire_wait(self) -> float:
        return self.waits.total

    @property
    def acquire_wait_max(self) -> float:
        return self.waits.longest
