"""A demultiplexer whose world is a test, and clients that speak to it one datagram at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, pull_quic_header

from helpers.stock_client import configuration
from pgtrunk_gateway.quic.admission import Admission, AdmissionLimits, RetryMode
from pgtrunk_gateway.quic.demux import Demultiplexer, Routed, Surroundings
from pgtrunk_gateway.quic.retry import RetryTokens
from pgtrunk_gateway.quic.sealing import Sealer
from pgtrunk_gateway.quic.udp import Path

if TYPE_CHECKING:
    from aioquic.quic.packet import QuicHeader

    from pgtrunk_gateway.quic.reception import Opening

HERE = Path(("192.0.2.1", 5000), cast("Any", None))
THERE = Path(("192.0.2.2", 5000), cast("Any", None))


@dataclass(eq=False)
class Connection:
    """Takes what it is given."""

    opening: Opening | None = None
    heard: list[tuple[bytes, Path]] = field(default_factory=list)
    raises: Exception | None = None

    def receive(self, data: bytes, path: Path) -> None:
        self.heard.append((data, path))
        if self.raises is not None:
            raise self.raises


class World:
    """A demultiplexer, and all that it does to the world."""

    def __init__(self, retry: RetryMode = "never", **limits: int) -> None:
        self.admission = Admission(AdmissionLimits(retry=retry, **limits))
        self.opened: list[Connection] = []
        self.replies: list[tuple[bytes, Path]] = []
        self.faults: list[tuple[Routed, Exception]] = []
        self.now = 1000.0
        self.room = True
        self.issued = 0
        surroundings = Surroundings(
            open=self.open,
            has_room=lambda: self.room,
            reply=lambda data, path: self.replies.append((data, path)),
            fault=lambda connection, exc: self.faults.append((connection, exc)),
            new_id=self.new_id,
            clock=lambda: self.now,
            entropy=bytes,
        )
        self.demux = Demultiplexer(self.admission, RetryTokens(Sealer([b"k" * 32], "retry")), surroundings)

    def new_id(self) -> bytes:
        self.issued += 1
        return self.issued.to_bytes(8, "big")

    def open(self, opening: Opening, path: Path) -> Connection:
        self.opened.append(Connection(opening))
        self.demux.add(self.new_id(), self.opened[-1])
        return self.opened[-1]

    def hears(self, data: bytes, path: Path = HERE) -> bytes | None:
        """Gives it a datagram and returns the reply, if there was one."""
        before = len(self.replies)
        self.demux.datagram_received(data, path)
        answers = self.replies[before:]
        assert len(answers) <= 1
        if not answers:
            return None
        answer, where = answers[0]
        assert where is path
        assert len(answer) <= len(data), "an answer is never larger than what it answers"
        return answer


@dataclass
class Client:
    """A stock client, one datagram at a time."""

    quic: QuicConnection = field(
        default_factory=lambda: QuicConnection(configuration=configuration(versions=(1, 0x6B3343CF)))
    )

    def __post_init__(self) -> None:
        self.quic.connect(("192.0.2.9", 6432), now=0.0)

    def says(self) -> bytes:
        sent = self.quic.datagrams_to_send(now=0.0)
        return sent[0][0]

    def hears(self, data: bytes) -> None:
        self.quic.receive_datagram(data, ("192.0.2.9", 6432), now=0.1)


def header_of(datagram: bytes) -> QuicHeader:
    return pull_quic_header(Buffer(data=datagram), host_cid_length=8)


def long_packet(
    version: int, *, first: int = 0xC0, destination: bytes = b"d" * 8, source: bytes = b"s" * 8, size: int = 1200
) -> bytes:
    head = bytes([first]) + version.to_bytes(4, "big")
    head += bytes([len(destination)]) + destination + bytes([len(source)]) + source
    return head.ljust(size, b"\x00")


def retried(world: World, client: Client) -> bytes:
    """Returns the client's second first packet, with a token."""
    answer = world.hears(client.says())
    assert answer is not None
    assert header_of(answer).packet_type is QuicPacketType.RETRY
    client.hears(answer)
    return client.says()
