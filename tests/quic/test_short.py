"""The short way out and the short look at timers: octet for octet, and second for second, what aioquic does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.connection import QuicConnection

from helpers.quic_pair import Echo, Pair
from pgtrunk.quic.acks import Acknowledging
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.short import ShortWay
from pgtrunk.quic.timers import Timers

if TYPE_CHECKING:
    from pgtrunk.quic.connection import Connection


def conversation(seed: int) -> tuple[list[bytes], list[float | None]]:
    """All datagrams of a conversation with losses and of every size, and when the timers were set."""
    rng = random.Random(seed)
    # aioquic knows no probes of the path's size.
    limits: dict[str, Any] = {"path_mtu": "off"}
    client, server = QuicLimits(max_streams=0, **limits), QuicLimits(**limits)
    pair = Pair(client=client, server=server, accept=Echo, seed=seed, loss=0.05, jitter=0.004)
    sent: list[bytes] = []
    timers: list[float | None] = []
    for link in (pair.up, pair.down):
        original = link.send

        def send(data: bytes, deliver: Any = None, original: Any = original) -> None:
            sent.append(bytes(data))
            original(data, deliver)

        link.send = send  # type: ignore[method-assign]
    quic = pair.client.driver.quic
    pair.connect()
    streams = [pair.open() for _ in range(12)]
    for _ in range(60):
        for stream in rng.sample(streams, 3):
            stream.transport.write(rng.randbytes(rng.choice([1, 60, 300, 1100, 5000])))
        pair.run(0.003)
        timers.append(quic.get_timer())
    pair.run(2.0)
    quic.request_key_update()
    quic.send_ping(7)
    pair.run(0.2)
    quic.change_connection_id()
    streams[0].transport.write(b"after")
    pair.run(1.0)
    assert bytes(streams[0].data).endswith(b"after")
    timers.append(quic.get_timer())
    pair.close()
    return sent, timers


def short_headers(datagrams: list[bytes]) -> list[tuple[int, int]]:
    """Size and, of the first octet, what is not protected."""
    return [(len(data), data[0] & 0xE0) for data in datagrams if not data[0] & 0x80]


def go_aioquics_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_ack_frame(self: Any, builder: Any, space: Any, now: float) -> None:
        self._unacknowledged = 0
        QuicConnection._write_ack_frame(self, builder, space, now)

    monkeypatch.setattr(ShortWay, "_datagrams", QuicConnection.datagrams_to_send)
    monkeypatch.setattr(Timers, "get_timer", QuicConnection.get_timer)
    monkeypatch.setattr(Timers, "_idle_timeout", QuicConnection._idle_timeout)
    monkeypatch.setattr(Acknowledging, "_write_ack_frame", write_ack_frame)


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_send_the_same_and_set_the_same_timers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    short, timers = conversation(seed)
    go_aioquics_way(monkeypatch)
    # A signature has 70 to 72 octets, by chance, and congestion control counts them.
    for _ in range(40):
        long, expected = conversation(seed)
        if short_headers(long) == short_headers(short):
            break
    assert timers == pytest.approx(expected)
    assert short_headers(short) == short_headers(long)


def test_the_short_way_is_taken_once_the_handshake_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(accept=Echo).connect()
    pair.run(0.2)

    def refuse(self: Connection, now: float) -> Any:
        raise AssertionError("aioquic's own way")

    monkeypatch.setattr(QuicConnection, "datagrams_to_send", refuse)
    stream = pair.open()
    stream.transport.write(b"x" * 5000)
    pair.until(lambda: len(stream.data) == 5000)
