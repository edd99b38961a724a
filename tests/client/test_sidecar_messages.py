"""What the sidecar reads of what it carries: a driver's first packet, and where the gateway's messages end."""

from __future__ import annotations

import struct

import pytest

from pgtrunk.errors import ProtocolViolation
from pgtrunk.sidecar.messages import Answers, Greeting
from pgtrunk.sidecar.owed import Owed
from pgtrunk.wire import backend
from pgtrunk.wire.startup import CancelRequest, GSSENCRequest, SSLRequest, StartupMessage

STARTUP = StartupMessage(parameters={"user": "app", "database": "shop"}).encode()
CANCEL = CancelRequest(7, b"1234").encode()
ASKS = GSSENCRequest().encode(), SSLRequest().encode()
LOGIN = backend.authentication_ok() + backend.parameter_status("a", "b") + backend.backend_key_data(-77, b"\0" * 32)


@pytest.mark.parametrize("packet", [STARTUP, CANCEL])
@pytest.mark.parametrize("asks", [(), ASKS[:1], ASKS])
def test_requests_for_encryption_are_answered_and_not_forwarded(packet: bytes, asks: tuple[bytes, ...]) -> None:
    greeting = Greeting()
    for ask in asks:
        assert greeting.feed(ask) == b"N"
    assert greeting.feed(packet + b"more") == b""
    assert greeting.data == packet + b"more"
    assert isinstance(greeting.packet, StartupMessage if packet == STARTUP else CancelRequest)


def test_a_greeting_byte_by_byte_and_all_at_once() -> None:
    said = b"".join(ASKS) + STARTUP
    at_once, one_by_one = Greeting(), Greeting()
    assert at_once.feed(said) == b"NN"
    assert b"".join(one_by_one.feed(said[at : at + 1]) for at in range(len(said))) == b"NN"
    assert at_once.packet == one_by_one.packet
    assert at_once.data == one_by_one.data == STARTUP


def test_what_comes_behind_the_packet_is_kept_as_it_is() -> None:
    greeting = Greeting()
    greeting.feed(STARTUP)
    assert greeting.feed(ASKS[0]) == b""
    assert greeting.data == STARTUP + ASKS[0]


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", struct.pack("!ii", 9, 2 << 16)]
)
def test_what_is_no_greeting_is_refused_at_once(nonsense: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        Greeting().feed(nonsense)


def test_the_ends_of_messages_are_found_wherever_the_bytes_are_cut() -> None:
    messages = [LOGIN, backend.ready(b"I"), backend.data_row([b"x" * 300, None]), backend.command_complete("SELECT 1")]
    said = b"".join(messages)
    ends = {0}
    at = 0
    while at < len(said):
        at += struct.unpack_from("!i", said, at + 1)[0] + 1
        ends.add(at)
    for size in (1, 2, 3, 7, 8, 100, len(said)):
        answers, told = Answers(Owed()), 0
        while told < len(said):
            answers.feed(said[told : told + size])
            told = min(told + size, len(said))
            # The key waits until it is whole.
            assert answers.is_between_messages == (told in ends), (size, told)
        assert answers.key == backend.BackendKeyData(-77, bytes(32))


def test_the_pid_is_that_of_the_login() -> None:
    answers = Answers(Owed())
    assert answers.key is None
    answers.feed(LOGIN)
    answers.feed(backend.backend_key_data(1, b"1234"))
    assert answers.key == backend.BackendKeyData(-77, bytes(32))
    assert repr(answers) == "<Answers pid=-77 between messages>"


@pytest.mark.parametrize("size", [4, 8, 32, 256])
def test_a_key_of_any_length_in_any_pieces(size: int) -> None:
    key = backend.BackendKeyData(7, bytes(range(size)))
    said = backend.backend_key_data(key.pid, key.secret) + backend.ready()
    for cut in range(len(said)):
        answers = Answers(Owed())
        answers.feed(said[:cut])
        answers.feed(said[cut:])
        assert answers.key == key
        assert answers.is_between_messages


@pytest.mark.parametrize("size", [0, 3, 257, 100_000])
def test_what_is_no_key_is_passed_over(size: int) -> None:
    """The driver will have its say about it."""
    answers = Answers(Owed())
    answers.feed(backend.backend_key_data(7, bytes(size)) + backend.ready())
    assert answers.key is None
    assert answers.is_between_messages


def test_what_is_no_postgres_never_ends() -> None:
    answers = Answers(Owed())
    answers.feed(b"R\0\0\0\3")
    answers.feed(LOGIN)
    assert not answers.is_between_messages
