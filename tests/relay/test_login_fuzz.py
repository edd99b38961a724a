"""Whatever comes instead of a login, in whatever pieces: it is refused or waited for, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.early import EarlyTransport
from helpers.lobby import USERS, Lobby
from pgtrunk.wire import frontend
from pgtrunk.wire.framing import encode, messages
from pgtrunk.wire.startup import PROTOCOL_3_2, CancelRequest, GSSENCRequest, SSLRequest, StartupMessage
from pgtrunk_gateway.session.state import State

NAMES = ("user", "database", "options", "replication", "TimeZone", "search_path", "client_encoding", "_pq_.x", "", "ä")
_parameters = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), st.text(max_size=5)),
    st.one_of(st.sampled_from(["app", "shop", "-c a=b", "-c=", "--x=\\ y", "true", ""]), st.text(max_size=12)),
    max_size=5,
)
_startups = st.one_of(
    st.builds(
        lambda protocol, parameters: StartupMessage(protocol, parameters).encode(),
        st.sampled_from([3 << 16, PROTOCOL_3_2, 3 << 16 | 99, 2 << 16]),
        _parameters,
    ),
    st.sampled_from(
        [
            StartupMessage(parameters={"user": "app", "database": "shop"}).encode(),
            StartupMessage(parameters={"user": "app", "database": "nowhere"}).encode(),
            SSLRequest().encode(),
            GSSENCRequest().encode(),
            CancelRequest(7, b"abcd").encode(),
            b"\x16\x03\x01\x02\0\1\0",
        ]
    ),
    st.builds(lambda length, body: struct.pack("!i", length) + body, st.integers(-(2**31), 2**31 - 1), st.binary()),
    st.binary(max_size=30),
)
_proofs = st.one_of(
    st.builds(
        frontend.sasl_initial_response, st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-256-PLUS", "X", ""]), st.binary()
    ),
    st.just(frontend.sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=abcdefgh")),
    st.binary(max_size=60).map(frontend.sasl_response),
    st.binary(max_size=30).map(lambda body: encode(b"p", body)),
    st.just(encode(b"p", b"secret\0")),
    st.sampled_from([b"X\0\0\0\4", b"Q\0\0\0\5\0", b"p\x7f\xff\xff\xff"]),
    st.binary(max_size=12),
)


def pieces(data: bytes, dice: random.Random) -> list[bytes]:
    cut = []
    while data:
        size = dice.choice([1, 3, 20, 5000])
        cut.append(data[:size])
        data = data[size:]
    return cut


@pytest.mark.parametrize("auth_type", ["trust", "scram-sha-256", "md5", "plain"])
@settings(max_examples=100)
@given(
    st.lists(_startups, min_size=1, max_size=3),
    st.lists(_proofs, max_size=3),
    st.randoms(use_true_random=False),
    st.booleans(),
)
async def test_any_login(
    auth_type: str, startups: list[bytes], proofs: list[bytes], dice: random.Random, says_that_it_ends: bool
) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    lobby = Lobby(auth_type=auth_type, users=USERS)
    out = b""
    for piece in pieces(b"".join(startups + proofs), dice):
        if lobby.transport.closing or lobby.transport.paused:
            break
        out += await lobby.send(piece)
    # Answers to requests for encryption come first, and are no messages.
    end = 0
    out = out.lstrip(b"N")
    for _, _, end in messages(out):  # noqa: B007 - the last one counts
        pass
    assert end == len(out)
    if says_that_it_ends and not lobby.transport.closing:
        lobby.session.eof_received()
        await lobby.settle()
    await lobby.end()
    assert lobby.session.state is State.CLOSED
    gc.collect()
    assert not faults


@pytest.mark.parametrize("begin", [b"", StartupMessage(parameters={"user": "app", "database": "shop"}).encode()])
async def test_who_sends_ahead_is_not_read_without_bound(begin: bytes) -> None:
    """The login waits for a derivation, or for the rest of a packet that is too long to be one."""
    lobby = Lobby(auth_type="scram-sha-256", users=USERS)
    lobby.deriving.clear()
    sent = 0
    await lobby.send(begin)
    while not (lobby.transport.paused or lobby.transport.closing) and sent < 1 << 20:
        await lobby.send(bytes(1 << 12))
        sent += 1 << 12
    assert sent < 1 << 18
    lobby.deriving.set()
    await lobby.end()


@pytest.mark.parametrize("auth_type", ["trust", "scram-sha-256", "md5", "plain"])
@settings(max_examples=50)
@given(st.lists(_startups, min_size=1, max_size=3), st.lists(_proofs, max_size=3), st.randoms(use_true_random=False))
async def test_any_login_in_early_data(
    auth_type: str, startups: list[bytes], proofs: list[bytes], dice: random.Random
) -> None:
    """Nothing comes of it before the handshake is complete, and no more than in any other afterwards."""
    transport = EarlyTransport()
    lobby = Lobby(auth_type=auth_type, users=USERS, transport=transport)
    for piece in pieces(b"".join(startups + proofs), dice):
        await lobby.send(piece)
    counters = lobby.context.counters
    assert (counters.admitted, counters.refused, lobby.context.admitted, lobby.pool.sessions) == (0, 0, 0, 0)
    assert lobby.session.state is State.LOGIN
    assert not transport.closing
    assert lobby.cancels.served == lobby.cancels.keys == []
    assert lobby.context.limiter.allow("192.0.2.1", asyncio.get_running_loop().time()) == 0.0
    if dice.random() < 0.5:
        transport.confirm()
        await lobby.send(b"")
        assert counters.admitted + counters.refused + len(lobby.cancels.served) <= 1
    await lobby.end()
