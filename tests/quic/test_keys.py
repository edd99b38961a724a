"""Keys are renewed in time, and nothing that is under way then is lost."""

from __future__ import annotations

import pytest

from helpers.quic_pair import Echo, Pair
from pgtrunk.quic import sending


@pytest.mark.parametrize(("loss", "jitter"), [(0.0, 0.0), (0.05, 0.01)])
def test_keys_are_renewed_before_they_have_protected_too_much(
    monkeypatch: pytest.MonkeyPatch, loss: float, jitter: float
) -> None:
    monkeypatch.setattr(sending, "PACKETS_PER_KEY", 200)
    pair = Pair(accept=Echo, loss=loss, jitter=jitter).connect()
    for end in (pair.client, pair.server):
        end.driver.quic._renew_keys_at = 100
    secrets = set()
    near = pair.open()
    for count in range(1, 101):
        near.transport.write(bytes(10_000))
        pair.until(lambda count=count: len(near.data) == count * 10_000)  # type: ignore[misc]
        secrets.add(pair.client.driver.quic._app_crypto.send.secret)
    assert 3 <= len(secrets) <= 20
    if not loss:
        # Nothing was sent twice: about nine packets of data and a few ACKs for each round.
        assert pair.up.sent < 100 * 12


def test_packets_under_way_when_keys_change_are_not_lost() -> None:
    pair = Pair(accept=Echo).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.until(lambda: near.data == b"x")
    there = pair.server.accepted[0]
    sent = pair.down.sent
    there.transport.write(bytes(8_000))
    pair.loop.tick(pair.loop.time())  # on the wire, under the old keys
    pair.client.driver.quic.request_key_update()
    near.transport.write(b"y")
    pair.loop.tick(pair.loop.time())
    assert pair.client.driver.quic._app_crypto.remembers
    pair.until(lambda: len(near.data) == 8_002)
    pair.run(0.1)
    assert pair.down.sent - sent <= 11
    for _ in range(20):
        near.transport.write(b"z")
        pair.run(0.1)
    assert not pair.client.driver.quic._app_crypto.remembers
    assert not pair.server.driver.quic._app_crypto.remembers
    assert near.data.endswith(b"z" * 20)


def test_a_packet_of_no_key_is_refused_with_and_without_old_ones() -> None:
    pair = Pair(accept=Echo).connect()
    near = pair.open()
    near.transport.write(b"x")
    pair.until(lambda: near.data == b"x")
    quic = pair.server.driver.quic
    for _ in range(2):
        for phase in (0x40, 0x44):
            quic.receive_datagram(bytes([phase]) + quic.host_cid + bytes(60), ("192.0.2.1", 40000), pair.loop.time())
        quic.request_key_update()
        pair.server.accepted[0].transport.write(b"y")
        pair.run(0.1)
    near.transport.write(b"still here")
    pair.run(0.1)
    assert near.data == b"xyystill here"
