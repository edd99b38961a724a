"""Stateless resets: the packets, and what a client makes of them."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.quic_pair import CLIENT_ADDR, SERVER_ADDR, Echo, Pair
from pgtrunk.errors import SessionLost
from pgtrunk.quic.reset import TOKEN_SIZE, is_reset
from pgtrunk_gateway.quic.resets import RESETS_PER_SECOND, Resets, ResetTokens, reset_packet

KEYS = (b"k" * 32, b"o" * 32)
ID = b"12345678"
TOKENS = ResetTokens(KEYS)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# Tokens


def test_whoever_has_the_keys_makes_the_same_token() -> None:
    assert ResetTokens(KEYS)(ID) == TOKENS(ID)
    assert len(TOKENS(ID)) == TOKEN_SIZE


def test_each_id_and_each_key_has_its_own() -> None:
    ids = [os.urandom(8) for _ in range(1000)]
    assert len({TOKENS(each) for each in ids}) == 1000
    assert ResetTokens(KEYS[::-1])(ID) != TOKENS(ID)


def test_the_token_is_a_format_that_stays() -> None:
    # Another version of the gateway that takes over has the same keys, and the clients have these.
    assert ResetTokens(KEYS[:1])(ID).hex() == "a4c2c23c98e84412679de4dd7afad685"
    assert ResetTokens(KEYS[-1:])(ID) == TOKENS(ID)


# Packets


@given(st.integers(22, 2000))
def test_an_answer_looks_like_a_packet_and_is_shorter_than_what_it_answers(size: int) -> None:
    answer = reset_packet(TOKENS(ID), answers=size, entropy=os.urandom)
    assert 21 <= len(answer) < size
    assert answer[0] & 0xC0 == 0x40
    assert is_reset(answer, TOKENS(ID))


def test_no_two_answers_are_alike() -> None:
    answers = {reset_packet(TOKENS(ID), answers=100, entropy=os.urandom)[:-TOKEN_SIZE] for _ in range(1000)}
    assert len(answers) == 1000


def test_what_is_no_reset() -> None:
    answer = reset_packet(TOKENS(ID), answers=100, entropy=os.urandom)
    assert not is_reset(answer, TOKENS(b"87654321"))
    assert not is_reset(answer[:-1], TOKENS(ID))
    assert not is_reset(answer, b"")
    assert not is_reset(b"", b"")
    assert not is_reset(TOKENS(ID), TOKENS(ID))


def resets(clock: Clock) -> Resets:
    return Resets(TOKENS, clock=clock, entropy=os.urandom)


def test_two_that_know_nothing_fall_silent() -> None:
    one, other = resets(Clock()), resets(Clock())
    packet: bytes | None = b"\x40" + ID + bytes(1000)
    exchanged = 0
    while packet is not None:
        packet = (one, other)[exchanged % 2].answer(packet[1:9], packet)
        exchanged += 1
    assert exchanged < 30


@pytest.mark.parametrize("packet", [b"", b"\x40", b"\x40" + ID, (b"\x40" + ID).ljust(21, b"x")])
def test_what_is_too_short_is_not_answered(packet: bytes) -> None:
    assert resets(Clock()).answer(packet[1:9], packet) is None


def test_there_is_a_rate() -> None:
    clock = Clock()
    answering = resets(clock)
    packet = b"\x40" + ID + bytes(100)
    answers = [answering.answer(ID, packet) for _ in range(int(RESETS_PER_SECOND) + 100)]
    assert sum(answer is not None for answer in answers) == RESETS_PER_SECOND
    clock.now += 1
    assert answering.answer(ID, packet) is not None


# The client's end


class Fallen:
    """A connection whose server forgets it: what its client sends from then on is answered by resets."""

    def __init__(self) -> None:
        self.pair = Pair(accept=Echo)
        server = self.pair.server.driver.quic
        for each in server._host_cids:
            each.stateless_reset_token = TOKENS(each.cid)
        server._reset_token = TOKENS
        self.pair.connect()
        self.protocol: Any = self.pair.open()
        self.protocol.transport.write(b"x")
        self.pair.run(0.5)
        self.asked: list[bytes] = []

    def forget(self, *, token: bytes | None = None) -> None:
        """``token``: the wrong one."""
        pair = self.pair

        def answer(data: bytes, _: Any) -> None:
            self.asked.append(data)
            reset = reset_packet(token or TOKENS(data[1:9]), answers=len(data), entropy=os.urandom)
            pair.down.send(reset, lambda data: pair.client.driver.receive(data, SERVER_ADDR))

        pair.server.driver.abandon(None)
        pair.server.driver.receive = answer  # type: ignore[assignment]

    @property
    def error(self) -> BaseException | None:
        return self.pair.client.driver.error


def test_a_client_that_asks_learns_that_its_connection_is_gone() -> None:
    fallen = Fallen()
    fallen.forget()
    fallen.protocol.transport.write(b"anybody there?")
    fallen.pair.run(0.2)
    assert isinstance(fallen.error, SessionLost)
    assert fallen.error.forgotten
    (told,) = fallen.protocol.lost
    assert isinstance(told, SessionLost)
    assert told.forgotten and told.sent
    assert "stateless reset" in str(fallen.error)
    assert fallen.pair.client.said[-2:] == ["lost", "closed"]
    sent = fallen.pair.up.sent
    fallen.pair.run(30)
    assert fallen.pair.up.sent == sent, "nothing more is sent"


def test_a_client_that_waits_asks_in_time() -> None:
    fallen = Fallen()
    fallen.forget()
    fallen.pair.run(3.0)
    assert isinstance(fallen.error, SessionLost)
    assert len(fallen.asked) == 1


def test_a_client_that_has_changed_its_id_is_told_by_the_new_ones_token() -> None:
    fallen = Fallen()
    quic = fallen.pair.client.driver.quic
    before = quic._peer_cid.cid
    quic.change_connection_id()
    fallen.forget()
    fallen.protocol.transport.write(b"anybody there?")
    fallen.pair.run(0.2)
    assert fallen.asked[0][1:9] == quic._peer_cid.cid != before
    assert isinstance(fallen.error, SessionLost)


def test_a_client_that_tries_another_path_is_told_there() -> None:
    fallen = Fallen()
    client = fallen.pair.client.driver
    tried: list[bytes] = []
    client._send = lambda data, addr: tried.append(data)  # the old path leads nowhere
    assert client.quic.try_path((SERVER_ADDR[0], 7777), fallen.pair.loop.time())
    client.touch()
    fallen.pair.run(0.1)
    probe = tried[0]
    assert probe[1:9] != client.quic._peer_cid.cid
    unused = client.quic._peer_cid_available[0]
    for token, is_over in ((unused.stateless_reset_token, False), (TOKENS(probe[1:9]), True)):
        client.receive(reset_packet(token, answers=len(probe), entropy=os.urandom), (SERVER_ADDR[0], 7777))
        assert isinstance(fallen.error, SessionLost) is is_over


def test_a_token_of_another_id_means_nothing() -> None:
    fallen = Fallen()
    fallen.forget(token=TOKENS(b"87654321"))
    fallen.protocol.transport.write(b"anybody there?")
    fallen.pair.run(1.0)
    assert fallen.asked
    assert fallen.error is None


def test_a_reset_that_looks_like_a_packet_to_us_is_one_all_the_same() -> None:
    fallen = Fallen()
    client = fallen.pair.client.driver
    token = client.quic._peer_cid.stateless_reset_token
    client.receive(b"\x41" + client.quic.host_cid + bytes(20) + token, SERVER_ADDR)
    assert isinstance(fallen.error, SessionLost)


def test_a_server_is_not_reset() -> None:
    pair = Pair().connect()
    server = pair.server.driver
    server.receive(b"\x41" + os.urandom(30) + server.quic._peer_cid.stateless_reset_token, CLIENT_ADDR)
    assert server.error is None
    assert server.is_ready


def test_a_connection_that_has_ended_is_not_reset_again() -> None:
    fallen = Fallen()
    client = fallen.pair.client.driver
    reset = reset_packet(client.quic._peer_cid.stateless_reset_token, answers=100, entropy=os.urandom)
    fallen.pair.close()
    client.receive(reset, SERVER_ADDR)
    assert fallen.error is None
