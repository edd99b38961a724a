"""What crosses the long link, packet by packet, as the client's host sees it; and how many round trips that was.

A round trip begins with the first packet that the client sends after it was answered (or at all), and is over with the
first packet from the other side that can be an answer to it: one that comes more than half a round-trip time later.
What comes sooner was on its way already. A TCP segment without data is no packet here, unless it opens a connection;
of QUIC's datagrams all are, since nobody can tell from outside what they carry.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from netem.errors import LabError

__all__ = ["Capture", "Packet", "packet_of", "round_trips"]

_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_LARGEST = 65_536
_BUFFER = 32 << 20
_TCP, _UDP = 6, 17
_SYN = 0x02
_TIME = struct.Struct("@ll")
_PATIENCE = 2.0
_SHORT = 0.005
"""Seconds: what tells when a packet came from when it was read."""


@dataclass(frozen=True, slots=True)
class Packet:
    """``at``: seconds since 1970, by the kernel's clock; ``octets``: what TCP or UDP carry in it."""

    at: float
    outbound: bool
    octets: int
    opens: bool = False
    """Whether it opens a TCP connection, from either side."""


def round_trips(packets: Iterable[Packet], rtt: float) -> int:
    """How often the client had to wait for an answer. ``packets`` are in order, ``rtt`` is in seconds."""
    count = 0
    asked: float | None = None
    for packet in packets:
        if not packet.octets and not packet.opens:
            continue
        if packet.outbound:
            asked = packet.at if asked is None else asked
        elif asked is not None and packet.at - asked > rtt / 2:
            count += 1
            asked = None
    return count


def packet_of(data: bytes, at: float, own: str) -> Packet | None:
    """An IPv4 packet from or to the address ``own``, if it is TCP or UDP; else None."""
    if len(data) < 20 or data[0] >> 4 != 4:
        return None
    header, total, protocol = (data[0] & 15) * 4, int.from_bytes(data[2:4], "big"), data[9]
    ends = socket.inet_ntoa(data[12:16]), socket.inet_ntoa(data[16:20])
    if own not in ends:
        return None
    outbound = ends[0] == own
    if protocol == _UDP:
        return Packet(at, outbound, total - header - 8)
    if protocol != _TCP or len(data) < header + 14:
        return None
    octets = total - header - (data[header + 12] >> 4) * 4
    return Packet(at, outbound, octets, bool(data[header + 13] & _SYN))


class Capture:
    """Packets of one device. The kernel keeps them with their times, until :meth:`take`."""

    def __init__(self, device: str, own: str) -> None:
        self._own = own
        try:
            # No protocol yet: it would hear of all devices until it is bound to one.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            self._socket.bind((device, 0x0003))  # ETH_P_ALL: what leaves, too
            _await_times()
        except OSError as error:
            raise LabError(f"packets of {device} cannot be captured: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def take(self) -> list[Packet]:
        """What has crossed since the last call."""
        packets: list[Packet] = []
        while True:
            try:
                data, notes, _, _ = self._socket.recvmsg(_LARGEST, socket.CMSG_SPACE(_TIME.size))
            except BlockingIOError:
                return packets
            seconds, nanoseconds = _TIME.unpack(notes[0][2][: _TIME.size])
            packet = packet_of(data, seconds + nanoseconds * 1e-9, self._own)
            if packet is not None:
                packets.append(packet)


def _await_times() -> None:
    """Returns when packets get their times as they arrive. Raises :class:`LabError` where that does not begin.

    The kernel begins to take times some while after the first socket has asked for them, and until then says the time
    at which a packet is read: all of a conversation would seem to happen at once.
    """
    give_up = time.monotonic() + _PATIENCE
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        probe.settimeout(_PATIENCE)
        probe.bind(("127.0.0.1", 0))
        while time.monotonic() < give_up:
            sent = time.time()
            probe.sendto(b"?", probe.getsockname())
            time.sleep(_SHORT)
            _, notes, _, _ = probe.recvmsg(1, socket.CMSG_SPACE(_TIME.size))
            seconds, nanoseconds = _TIME.unpack(notes[0][2][: _TIME.size])
            if seconds + nanoseconds * 1e-9 < sent + _SHORT / 2:
                return
    raise LabError(f"the kernel does not say when packets arrive, {_PATIENCE:g} s after it was asked to")
