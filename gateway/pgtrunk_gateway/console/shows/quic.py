"""QUIC connections and the streams in them. PgBouncer has nothing like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pgtrunk_gateway.address import readable
from pgtrunk_gateway.console.columns import ints, longs, texts
from pgtrunk_gateway.console.registry import show
from pgtrunk_gateway.fronts.quic import QuicFront

if TYPE_CHECKING:
    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.view import View

__all__: list[str] = []


@show(
    "CONNECTIONS",
    (
        *ints("id"),
        *texts("peer"),
        *ints("age streams rtt_us cwnd in_flight"),
        *longs("packets_sent packets_lost bytes_received bytes_sent held_bytes"),
        *longs("losses copies_eligible copies copies_off_guard copies_off_window copies_spurious"),
        *ints("datagram_size moves"),
    ),
)
def show_connections(view: View) -> Iterable[Row]:
    """Ages in seconds, round trip times in microseconds, all else in bytes or packets; copies are frames.

    Of ``copies_eligible`` small answers that first left in times of ``losses``, ``copies`` were sent once more, and
    others not: losses looked like congestion (``off_guard``), or half the window was in flight (``off_window``).
    ``moves`` are changes of the client's address that were validated.
    """
    for driver in _drivers(view):
        figures = driver.figures()
        twice = figures.redundancy
        yield (
            driver.id,
            readable(figures.peername) if isinstance(figures.peername, tuple) else "",
            int(figures.age),
            len(driver.streams),
            int(figures.rtt * 1e6),
            figures.congestion_window,
            figures.bytes_in_flight,
            figures.packets_sent,
            figures.packets_lost,
            figures.received,
            figures.sent,
            figures.held,
            twice.losses,
            twice.eligible,
            twice.copies,
            twice.suppressed_guard,
            twice.suppressed_window,
            twice.spurious,
            figures.datagram_size,
            figures.moves,
        )


@show("STREAMS", (*ints("connection"), *longs("stream"), *ints("session unread unacked"), *texts("state")))
def show_streams(view: View) -> Iterable[Row]:
    """``session`` is the id in SHOW CLIENTS; bytes that the session has not read, and that its client has not taken."""
    for driver in _drivers(view):
        for stream, transport in list(driver.streams.items()):
            session = getattr(transport.get_protocol(), "id", None)
            state = "closing" if transport.is_closing() else "open" if transport.is_reading() else "paused"
            yield driver.id, stream, session, transport.unread, transport.get_write_buffer_size(), state


def _drivers(view: View) -> Iterator[ConnectionDriver]:
    for front in view.fronts():
        if isinstance(front, QuicFront):
            yield from sorted(front.drivers, key=lambda driver: driver.id)
