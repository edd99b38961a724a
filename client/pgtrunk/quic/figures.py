"""What a connection is doing, read off when somebody looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ending import show
from .recovery import FlooredReno

if TYPE_CHECKING:
    from aioquic.quic.connection import NetworkAddress

    from .driver import ConnectionDriver
    from .redundancy import RedundancyFigures

__all__ = ["Figures", "read_figures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One connection at one moment. Times in seconds, sizes in bytes."""

    peername: NetworkAddress | None

    @property
    def peer(self) -> str:
        """The peer's address, as people write it."""
        return show(self.peername)

    age: float
    """Since its first packet."""
    rtt: float
    """The smoothed round trip time; 0 before there is a first sample, as for the next two."""
    rtt_min: float
    """The least of all samples, and never above ``rtt``."""
    rtt_latest: float
    """The last sample."""
    congestion_window: int
    """What may be in flight."""
    bytes_in_flight: int
    """What is sent and neither acknowledged nor given up."""
    packets_sent: int
    packets_lost: int
    """Packets that were taken for lost; see RFC 9002, section 6.1."""
    received: int
    """UDP payload, whatever was in it."""
    sent: int
    datagram_size: int
    """Octets of UDP payload that the path has proved to carry."""
    moves: int
    """Changes of the address of either end that were validated (RFC 9000 section 9)."""
    held: int
    """Received and not consumed: what counts in the budgets."""
    asking: int
    """Streams whose last request is not answered yet, where that is looked at (`TimedTransport`)."""
    redundancy: RedundancyFigures
    """What came of sending small messages twice."""
    is_resumed: bool
    """Whether the handshake was shortened by a session ticket."""
    early: bool | None
    """Whether early data was taken; None where none was sent, or it is not known yet."""


def read_figures(driver: ConnectionDriver) -> Figures:
    """The figures of ``driver`` now."""
    quic = driver.quic
    recovery = quic._loss
    congestion = recovery._cc
    return Figures(
        peername=driver.peername,
        age=driver.loop.time() - driver.opened_at,
        rtt=recovery._rtt_smoothed,
        # aioquic takes no sample for less than 1 ms, but for the first where it is smoothed: on one machine the mean
        # would be below the least.
        rtt_min=min(recovery._rtt_min, recovery._rtt_smoothed) if recovery._rtt_initialized else 0.0,
        rtt_latest=recovery._rtt_latest if recovery._rtt_initialized else 0.0,
        congestion_window=recovery.congestion_window,
        bytes_in_flight=recovery.bytes_in_flight,
        packets_sent=quic._packet_number,
        packets_lost=congestion.lost if isinstance(congestion, FlooredReno) else 0,
        received=driver.received,
        sent=driver.sent,
        datagram_size=quic._max_datagram_size,
        moves=quic.moves,
        held=driver.held_bytes,
        asking=sum(transport.is_asking for transport in list(driver.streams.values())),
        redundancy=quic.redundancy_figures,
        is_resumed=driver.was_resumed,
        early=driver.took_early if driver._sends_early and driver.is_confirmed else None,
    )
