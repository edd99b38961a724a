"""Limits of one QUIC connection, and the byte budget that all connections of a process share.

Values only: nothing here knows aioquic's connection, a socket or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Protocol

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion

from .control import CONTROL_ALPN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .pmtu import PathMtu
    from .redundancy import Redundancy

__all__ = ["ALPN", "CID_LENGTH", "ByteBudget", "QuicLimits", "quic_configuration"]

ALPN = (CONTROL_ALPN, "postgresql")
"""What a connection may call itself, what is preferred first. Both carry streams of plain protocol v3; on one of the
first both ends also speak a control stream."""

CID_LENGTH = 8
"""Octets of the connection ids that we issue; see connection_id.py."""

ALARM_SLACK = 0.001
"""How late, in seconds, an event loop's timer commonly fires; part of max_ack_delay by RFC 9000 section 18.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicLimits:
    """What one connection may hold, and when it gives up. Each end has its own."""

    idle_timeout: float = 10.0
    """Seconds of silence after which either end drops the connection. A killed peer sends nothing that says so, and its
    row locks last this long; a client with open streams asks sooner: ``keepalive``."""
    keepalive: float = 2.0
    """Seconds without a word after which a client with open streams sends a PING; a third of the idle timeout where
    that is less. Who has taken over from a worker that died says in answer that it knows nothing of the connection, and
    sessions should learn of it within 3 s."""
    handshake_timeout: float = 10.0
    """Seconds from the first datagram to a completed handshake."""
    max_streams: int = 1000
    """Bidirectional streams that the peer may have open at a time. A client sets 0: a gateway opens none."""
    stream_window: int = 64 << 10
    """Unread bytes a stream starts with; less where ``max_streams`` of them would not fit half the connection
    budget."""
    max_stream_window: int = 1 << 20
    """Unread bytes to which a stream's window grows while it is consumed quickly and the budgets have room."""
    connection_budget: int = 32 << 20
    """Unread bytes that one connection may hold."""
    high_water: int = 256 << 10
    """Bytes written but not yet acknowledged, per stream, above which its protocol is told to pause writing."""
    low_water: int = 64 << 10
    """Bytes written but not yet acknowledged, per stream, at which its protocol may write again."""
    path_mtu: PathMtu = "auto"
    """auto: datagrams begin at 1200 octets of UDP payload, which fit every path (RFC 9000 section 14), and grow as far
    as probes prove it, where many are sent that are full; off: they stay at 1200."""
    max_datagram_size: int = 1472
    """Octets of UDP payload to which they grow at most, over IPv4: Ethernet's 1500 less the headers. Over IPv6, whose
    header is longer, 20 less."""
    ack_delay: float = 0.006
    """Seconds that an acknowledgement waits for data to ride on; advertised to the peer as max_ack_delay. Longer than
    redundancy.DELTA, so that an original and its copy share one; where nothing is lost and nothing copied, a client
    with 50 queries/s sends 5 % fewer packets than with 4 ms."""
    congestion_floor: int = 0
    """Datagrams under which losses never take the congestion window; 0 is RFC 9002. For known paths only: 16 are
    5 Mbit/s at 30 ms which nothing can take away."""
    redundancy: Redundancy = "auto"
    """auto: small messages are sent twice while the path loses packets; off: nothing but lost data is sent again."""
    socket_buffer: int = 4 << 20
    """Octets asked of the kernel for each socket's receive and send buffer."""

    @property
    def initial_window(self) -> int:
        """Unread bytes a stream starts with: all streams of the peer, all blocked, fill half the connection budget."""
        return min(self.stream_window, self.connection_budget // 2 // max(self.max_streams, 1))

    @property
    def max_ack_delay(self) -> int:
        """The milliseconds to advertise: the timer rounded up, and what the event loop may add."""
        return ceil(round((self.ack_delay + ALARM_SLACK) * 1000, 6))


class _Account(Protocol):
    """One connection's part of a budget."""

    @property
    def held(self) -> int: ...
    def on_room(self) -> None: ...


class ByteBudget:
    """Unread bytes that all connections of a process may hold together.

    It counts commitments: what is held, and what peers have been promised and may send at any time. Each open
    connection has ``reserve`` for certain; the rest goes to whoever needs it first. So the bytes held stay below
    ``limit`` whatever the peers do, as long as connections are only accepted while ``admits`` is true.
    """

    def __init__(self, limit: int, *, reserve: int = 64 << 10) -> None:
        self.limit = limit
        self.reserve = min(reserve, limit)
        self.committed = 0
        self._accounts: set[_Account] = set()
        self._waiting: dict[_Account, None] = {}

    def __repr__(self) -> str:
        return f"<ByteBudget [{self.held} held, {self.committed} committed, {self.limit} limit]>"

    @property
    def held(self) -> int:
        """Bytes received and not yet consumed, over all connections."""
        return sum(account.held for account in self._accounts)

    @property
    def room(self) -> int:
        """Bytes that are neither held nor promised nor reserved."""
        return self.limit - self.committed

    @property
    def admits(self) -> bool:
        """Whether one more connection's reserve fits."""
        return self.room >= self.reserve

    def join(self, account: _Account) -> None:
        """Open an account with nothing but its reserve."""
        self._accounts.add(account)
        self.committed += self.reserve

    def leave(self, account: _Account, commitment: int) -> None:
        """Close an account, with all that it still holds."""
        if account in self._accounts:
            self._accounts.remove(account)
            self._waiting.pop(account, None)
            self.change(max(commitment, self.reserve), 0)

    def change(self, before: int, after: int) -> None:
        """Record that an account's commitment changed."""
        self.committed += after - before
        if self._waiting and after < before and self.room >= self.reserve:
            waiting, self._waiting = self._waiting, {}
            for account in waiting:
                account.on_room()

    def wait(self, account: _Account) -> None:
        """Have the account's ``on_room`` called when there is room again."""
        self._waiting[account] = None


def quic_configuration(limits: QuicLimits, *, is_client: bool, alpn: Sequence[str] = ALPN) -> QuicConfiguration:
    """Return what aioquic needs to know of ``limits``. Certificates are the caller's to add.

    Version 1 only: both ends are ours, and each further version costs a set of Initial keys per handshake.
    """
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=list(alpn),
        connection_id_length=CID_LENGTH,
        idle_timeout=limits.idle_timeout,
        supported_versions=[QuicProtocolVersion.VERSION_1],
        # Pooled connections idle between bursts, and aioquic's cubic forgets its window after 2 s of that.
        congestion_control_algorithm="reno",
        # The first probe timeout is twice this: 200 ms by default, for paths that we expect at 30.
        initial_rtt=0.05,
    )
