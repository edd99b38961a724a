from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, QuicProtocolVersion, pull_quic_header
from hypothesis import given
from hypothesis import strategies as st

from helpers.stock_client import configuration
from pgtrunk.quic.admission import Admission, AdmissionLimits, RetryMode
from pgtrunk.quic.demux import Demultiplexer, Routed, Surroundings, read_long
from pgtrunk.quic.reception import REFUSALS_PER_SECOND, Opening
from pgtrunk.quic.reset import Resets
from pgtrunk.quic.retry import RetryTokens
from pgtrunk.quic.sealing import Sealer
from pgtrunk.quic.udp import Path

if TYPE_CHECKING:
    from aioquic.quic.packet import QuicHeader

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


FIRST = Client().says()

# Known connections


def test_a_short_header_goes_to_its_connection() -> None:
    world, connection = World(), Connection()
    world.demux.add(b"12345678", connection)
    world.hears(b"\x4012345678 and the rest")
    assert connection.heard == [(b"\x4012345678 and the rest", HERE)]


def test_a_short_header_to_nobody_is_dropped_and_counted() -> None:
    world = World()
    assert world.hears(b"\x4012345678 and the rest") is None
    assert world.hears(b"\x40123") is None
    assert world.demux.counters.unknown == 2


def test_a_long_header_goes_to_its_connection_whatever_its_type() -> None:
    world, connection = World(), Connection()
    world.demux.add(b"d" * 8, connection)
    for first in (0xC0, 0xD0, 0xE0):
        world.hears(long_packet(1, first=first, size=60))
    assert len(connection.heard) == 3


def test_ids_come_and_go_without_a_trace() -> None:
    world, one, two = World(), Connection(), Connection()
    for n in range(5):
        world.demux.add(bytes([n]) * 8, one)
        world.demux.add(bytes([n + 100]) * 8, two)
    world.demux.remove(bytes([3]) * 8)
    world.demux.remove(b"unknown!")
    assert len(world.demux) == 9
    world.demux.forget(one)
    assert len(world.demux) == 5
    world.demux.forget(one)
    world.demux.forget(two)
    assert len(world.demux) == 0
    assert not world.demux._ids


def test_a_connection_that_fails_is_given_up_alone() -> None:
    world, broken, other = World(), Connection(raises=IndexError("ours")), Connection()
    world.demux.add(b"12345678", broken)
    world.demux.add(b"abcdefgh", other)
    world.hears(b"\x4012345678")
    world.hears(b"\x40abcdefgh")
    assert world.faults == [(broken, broken.raises)]
    assert len(other.heard) == 1
    assert world.demux.counters.faults == 1


# First packets


def test_an_initial_begins_a_connection_once() -> None:
    world, first = World(), Client().says()
    world.hears(first)
    world.hears(first)
    (connection,) = world.opened
    assert len(connection.heard) == 2
    assert connection.opening is not None
    assert connection.opening.original_id == connection.opening.destination_id == header_of(first).destination_cid
    assert connection.opening.retry_id is None
    assert world.admission.half_open == 1


def test_a_small_datagram_begins_nothing() -> None:
    world, first = World(), Client().says()
    assert world.hears(first[:1199]) is None
    assert world.opened == []


@pytest.mark.parametrize("first", [0xD0, 0xE0, 0xF0, 0x80], ids=["0-RTT", "Handshake", "Retry", "no fixed bit"])
def test_only_an_initial_begins_a_connection(first: int) -> None:
    world = World()
    assert world.hears(long_packet(1, first=first)) is None
    assert world.opened == []


@pytest.mark.parametrize("size", [0, 7, 21, 255])
def test_a_first_id_has_8_to_20_octets(size: int) -> None:
    world = World()
    assert world.hears(long_packet(1, destination=b"d" * size)) is None
    assert world.opened == []


def test_a_listener_that_closes_refuses_in_words() -> None:
    world, client = World(), Client()
    world.demux.reception.is_accepting = False
    answer = world.hears(client.says())
    assert answer is not None
    client.hears(answer)
    assert client.quic._close_event is not None
    assert client.quic._close_event.error_code == QuicErrorCode.CONNECTION_REFUSED
    assert world.opened == []


def test_a_listener_without_room_refuses_in_words() -> None:
    world = World()
    world.room = False
    assert world.hears(Client().says()) is not None
    assert (world.demux.counters.refused, world.admission.half_open) == (1, 0)


def test_refusals_have_a_rate() -> None:
    world, first = World(), Client().says()
    world.demux.reception.is_accepting = False
    answers = [world.hears(first) for _ in range(int(REFUSALS_PER_SECOND) + 50)]
    assert sum(answer is not None for answer in answers) == REFUSALS_PER_SECOND
    world.now += 1
    assert world.hears(first) is not None


def test_above_the_limits_silence() -> None:
    world = World("never", max_half_open=3)
    for _ in range(5):
        assert world.hears(Client().says()) is None
    assert (len(world.opened), world.demux.counters.over_limit) == (3, 2)


def test_one_address_has_a_limit_of_its_own() -> None:
    world = World("never", max_half_open_per_address=2)
    for _ in range(4):
        world.hears(Client().says(), HERE)
    world.hears(Client().says(), THERE)
    assert len(world.opened) == 3


# Retry


def retried(world: World, client: Client) -> bytes:
    """Returns the client's second first packet, with a token."""
    answer = world.hears(client.says())
    assert answer is not None
    assert header_of(answer).packet_type is QuicPacketType.RETRY
    client.hears(answer)
    return client.says()


def test_a_client_that_proves_its_address_gets_in() -> None:
    world, client = World("always"), Client()
    original = client.quic.original_destination_connection_id
    second = retried(world, client)
    assert world.opened == []
    world.hears(second)
    (connection,) = world.opened
    assert connection.opening is not None
    assert connection.opening.original_id == original
    assert connection.opening.retry_id == header_of(second).destination_cid


def test_nothing_is_remembered_of_who_was_asked() -> None:
    world = World("always")
    for _ in range(1000):
        world.hears(FIRST)
    assert (len(world.demux), world.admission.half_open, world.demux.counters.retries) == (0, 0, 1000)


def test_auto_asks_only_in_a_crowd() -> None:
    world = World("auto", max_half_open=40, max_half_open_per_address=1000)
    for _ in range(10):
        assert world.hears(Client().says()) is None
    assert world.hears(Client().says()) is not None
    assert (len(world.opened), world.demux.counters.retries) == (10, 1)


def test_a_token_from_busier_times_is_still_taken() -> None:
    busy, quiet, client = World("always"), World("never"), Client()
    quiet.hears(retried(busy, client))
    (connection,) = quiet.opened
    assert connection.opening is not None
    assert connection.opening.retry_id is not None


@pytest.mark.parametrize("wrong", ["late", "from elsewhere", "garbled"])
@pytest.mark.parametrize("mode", ["always", "auto", "never"])
def test_a_bad_token_is_answered_with_invalid_token(wrong: str, mode: RetryMode) -> None:
    client = Client()
    second = retried(World("always"), client)
    world = World(mode)
    if wrong == "late":
        world.now += 60
    if wrong == "garbled":
        token = header_of(second).token
        second = second.replace(token, token[:-1] + bytes([token[-1] ^ 1]))
    answer = world.hears(second, THERE if wrong == "from elsewhere" else HERE)
    assert answer is not None
    assert world.opened == []
    client.hears(answer)
    assert client.quic._close_event is not None
    assert client.quic._close_event.error_code == QuicErrorCode.INVALID_TOKEN


# Version negotiation


def test_another_version_is_negotiated() -> None:
    world = World()
    answer = world.hears(long_packet(0x1A2A3A4A))
    assert answer is not None
    header = header_of(answer)
    assert header.packet_type is QuicPacketType.VERSION_NEGOTIATION
    assert header.supported_versions == [QuicProtocolVersion.VERSION_1]
    assert (header.destination_cid, header.source_cid) == (b"s" * 8, b"d" * 8)


def test_ids_of_other_versions_may_be_long() -> None:
    answer = World().hears(long_packet(0x1A2A3A4A, destination=b"d" * 255, source=b"s" * 200))
    assert answer is not None
    assert b"s" * 200 in answer
    assert b"d" * 255 in answer


def test_version_negotiation_is_never_answered() -> None:
    world = World()
    assert world.hears(long_packet(0)) is None
    answer = world.hears(long_packet(0x1A2A3A4A))
    assert answer is not None
    assert world.hears(answer.ljust(1200, b"\x00")) is None
    assert world.demux.counters.negotiated == 1


def test_small_datagrams_of_other_versions_are_not_answered() -> None:
    assert World().hears(long_packet(0x1A2A3A4A, size=1199)) is None


# Garbage


@pytest.mark.parametrize("size", range(30))
def test_a_cut_header_is_no_header(size: int) -> None:
    whole = long_packet(1, size=23)
    assert (read_long(whole[:size]) is None) is (size < 23)


@given(data=st.binary(max_size=1500))
def test_noise_opens_nothing(data: bytes) -> None:
    world = World()
    world.hears(data)
    assert len(world.demux) == 2 * len(world.opened)


@given(data=st.data())
def test_damaged_first_packets_do_no_harm(data: st.DataObject) -> None:
    packet = bytearray(FIRST)
    for _ in range(data.draw(st.integers(1, 6))):
        packet[data.draw(st.integers(0, 40))] = data.draw(st.integers(0, 255))
    world = World(data.draw(st.sampled_from(["auto", "always", "never"])))
    world.hears(bytes(packet[: data.draw(st.integers(0, 1300))]))
    assert world.faults == []


# Other workers, and connections that are gone


class Fleet(World):
    """One of two workers: ids that begin with "o" are the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_on: list[tuple[bytes, bytes, Path]] = []
        self.demux._world = replace(self.demux._world, pass_on=self.pass_on)

    def pass_on(self, connection_id: bytes, data: bytes, path: Path) -> bool:
        if not connection_id.startswith(b"o"):
            return False
        self.passed_on.append((connection_id, data, path))
        return True


@pytest.mark.parametrize(
    "packet", [b"\x40other678 and the rest", long_packet(1, destination=b"other678"), long_packet(1, destination=b"oo")]
)
def test_what_is_another_workers_is_passed_on(packet: bytes) -> None:
    world = Fleet()
    assert world.hears(packet, THERE) is None
    [(connection_id, data, path)] = world.passed_on
    assert connection_id in packet
    assert data == packet
    assert path is THERE
    assert (world.demux.counters.passed_on, world.demux.counters.unknown) == (1, 0)


def test_what_is_known_is_not_passed_on_whoever_it_should_belong_to() -> None:
    world, connection = Fleet(), Connection()
    world.demux.add(b"other678", connection)
    world.hears(b"\x40other678")
    world.hears(long_packet(1, destination=b"other678"))
    assert len(connection.heard) == 2
    assert not world.passed_on


def test_nothing_is_passed_on_twice() -> None:
    world = Fleet()
    world.demux.datagram_received(b"\x40other678", HERE, was_passed_on=True)
    world.demux.datagram_received(long_packet(1, destination=b"other678", first=0xE0), HERE, was_passed_on=True)
    assert not world.passed_on
    assert world.demux.counters.unknown == 2


def test_another_version_is_negotiated_by_whoever_hears_it() -> None:
    world = Fleet()
    assert world.hears(long_packet(0x1A2A3A4A, destination=b"other678")) is not None
    assert not world.passed_on


class Remembering(World):
    """Answers by resets."""

    def __init__(self) -> None:
        super().__init__()
        resets = Resets(lambda connection_id: connection_id * 2, clock=lambda: self.now, entropy=bytes)
        self.demux._world = replace(self.demux._world, resets=resets)


def test_a_short_header_to_nobody_is_answered_by_a_reset() -> None:
    world = Remembering()
    answer = world.hears(b"\x4012345678 and the rest of it")
    assert answer is not None
    assert answer.endswith(b"1234567812345678")
    assert (world.demux.counters.unknown, world.demux.counters.resets) == (1, 1)


def test_so_is_a_packet_of_a_handshake() -> None:
    answer = Remembering().hears(long_packet(1, first=0xE0, destination=b"12345678", size=60))
    assert answer is not None
    assert answer.endswith(b"1234567812345678")


@pytest.mark.parametrize(
    "packet",
    [
        b"\x4012345678",
        b"\x40123",
        (b"\x4012345678").ljust(21),
        long_packet(1, first=0xD0),
        long_packet(1, first=0xF0),
        long_packet(1, first=0xC0, size=100),
        long_packet(1, first=0xE0, destination=b"another's", size=60),
        long_packet(0x1A2A3A4A, first=0xE0, size=60),
    ],
    ids=["no rest", "no id", "too short", "0-RTT", "Retry", "Initial", "no id of ours", "another version"],
)
def test_what_gets_no_reset(packet: bytes) -> None:
    world = Remembering()
    assert world.hears(packet) is None
    assert world.demux.counters.resets == 0


def test_a_retired_id_is_nobodys() -> None:
    world = Remembering()
    world.demux.add(b"12345678", Connection())
    packet = b"\x4012345678 and the rest of it"
    assert world.hears(packet) is None
    world.demux.remove(b"12345678")
    assert world.hears(packet) is not None


# Turns


class Turning(World):
    """Where handshakes begin one in each turn of the loop."""

    def __init__(self, retry: RetryMode = "never", **limits: int) -> None:
        super().__init__(retry, **limits)
        self.asked = 0
        reception = self.demux.reception
        reception._world = replace(self.demux._world, later=self.later)

    def later(self) -> None:
        self.asked += 1

    def turn(self) -> None:
        assert self.asked == 1, "one turn is asked for at a time"
        self.asked = 0
        self.demux.reception.next_turn()

    def end(self, connection: Connection) -> None:
        assert connection.opening is not None
        self.admission.end(connection.opening.half_open)
        self.demux.reception.is_over()


def test_one_handshake_begins_in_each_turn_in_order() -> None:
    world, clients = Turning(), [Client() for _ in range(4)]
    for client in clients:
        world.hears(client.says())
    for number in range(4):
        assert len(world.opened) == number + 1
        assert world.demux.reception.waiting == 3 - number
        world.turn()
    assert world.asked == 0
    ids = [client.quic.original_destination_connection_id for client in clients]
    assert [each.opening.destination_id for each in world.opened if each.opening] == ids
    assert world.demux.counters.opened == 4
    # And the next one at once.
    world.hears(Client().says())
    assert len(world.opened) == 5


def test_who_waits_is_not_let_in_twice_and_has_all_its_datagrams() -> None:
    world, client = Turning(), Client()
    world.hears(Client().says())
    first = client.says()
    name = client.quic.original_destination_connection_id
    early = long_packet(1, first=0xD0, destination=name, size=100)
    for data in (first, early, first, first, first, first):
        world.hears(data)
    world.turn()
    assert [data for data, _ in world.opened[1].heard] == [first, early, first, first]
    world.turn()
    world.hears(first)
    assert len(world.opened) == 2
    assert len(world.opened[1].heard) == 5


def test_who_is_one_too_many_waits_for_others_to_be_done() -> None:
    world = Turning("always", max_half_open=2)
    for _ in range(4):
        world.hears(retried(world, Client()))
        if world.asked:
            world.turn()
    assert (len(world.opened), world.demux.reception.waiting, world.asked) == (2, 2, 0)
    world.end(world.opened[0])
    world.turn()
    assert (len(world.opened), world.demux.reception.waiting) == (3, 1)
    world.turn()
    world.end(world.opened[1])
    world.end(world.opened[2])
    world.turn()
    assert (len(world.opened), world.demux.reception.waiting) == (4, 0)
    assert world.demux.counters.over_limit == 0


def test_who_has_waited_for_memory_and_sends_again_is_let_in() -> None:
    world, client = Turning(), Client()
    world.hears(Client().says())
    first = client.says()
    world.hears(first)
    world.room = False
    world.turn()
    assert (len(world.opened), world.asked) == (1, 0)
    world.room = True
    world.hears(first)
    world.turn()
    assert len(world.opened) == 2


def test_who_waits_in_vain_is_counted() -> None:
    world = Turning("always", max_half_open=1)
    for _ in range(2):
        world.hears(retried(world, Client()))
        if world.asked:
            world.turn()
    world.now += 60
    world.end(world.opened[0])
    world.turn()
    assert (len(world.opened), world.demux.reception.waiting, world.demux.counters.over_limit) == (1, 0, 1)


def test_who_waits_while_the_listener_closes_is_told_when_it_asks_again() -> None:
    world, client = Turning(), Client()
    world.hears(Client().says())
    first = client.says()
    world.hears(first)
    world.demux.reception.is_accepting = False
    world.turn()
    assert world.hears(first) is not None
    assert len(world.opened) == 1


def test_in_a_crowd_of_those_who_wait_the_next_are_asked_for_their_address() -> None:
    world = Turning("auto", max_half_open=40, max_half_open_per_address=1000)
    answers = [world.hears(Client().says()) for _ in range(12)]
    assert [answer is not None for answer in answers] == [False] * 10 + [True] * 2
    assert (len(world.opened), world.demux.reception.waiting) == (1, 9)


def test_whom_others_hear_now_is_forgotten() -> None:
    world = Turning()
    world.hears(Client().says())
    world.hears(Client().says())
    world.demux.reception.forget_all()
    world.turn()
    assert len(world.opened) == 1
