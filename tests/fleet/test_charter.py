"""What a worker is told arrives as it was said."""

from __future__ import annotations

from dataclasses import replace

from pgtrunk_gateway.fleet.charter import Charter, Secrets
from pgtrunk_gateway.fleet.frames import Frames, encode

CHARTER = Charter(
    index=1,
    count=3,
    generation=0,
    ini="/etc/pgtrunk/gateway.ini",
    quiet=True,
    verbose=2,
    secrets=Secrets(quic_keys=(bytes(range(32)), b"\xff" * 32), mock_key=b"\0" * 32),
    tcp=("127.0.0.1:6432", "[::1]:6432"),
    tcp_port=6432,
    unix=("/tmp/.s.PGSQL.6432",),
    udp=(11, 12),
    forward_in=13,
    forward_out={0: 14, 2: 15},
    hand=16,
    board=17,
    standing={"paused": ["shop"]},
    keep={"bank": {"shares": 3}},
)


def test_it_travels() -> None:
    for charter in (CHARTER, replace(CHARTER, tcp=(), unix=(), udp=(), forward_out={}, standing={}, keep={})):
        (body,) = Frames().feed(encode(charter.as_body()))
        assert Charter.from_body(body) == charter


def test_it_names_all_that_is_inherited() -> None:
    assert sorted(CHARTER.descriptors) == list(range(11, 18))


def test_it_shows_no_secret() -> None:
    assert "\\xff" not in repr(CHARTER)
    assert "quic_keys" not in repr(CHARTER)
