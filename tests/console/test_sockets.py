"""PgBouncer's words for the states of sessions and backends, and what is shown of their connections."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.consoles import Room, rows
from helpers.transports import FakeTransport
from pgtrunk_gateway.console.shows import sockets
from pgtrunk_gateway.pool.backend import BackendState


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ({"holder": "somebody"}, "active"),
        ({"holder": "somebody", "cancels": 1}, "active"),
        ({"cancels": 1}, "being_canceled"),
        ({"state": BackendState.STARTING}, "new"),
        ({"state": BackendState.CHECKING}, "tested"),
        ({"state": BackendState.RESETTING}, "tested"),
        ({"state": BackendState.RECOVERING}, "tested"),
        ({"stale": True}, "used"),
        ({}, "idle"),
    ],
    ids=str,
)
def test_backends(what: dict[str, Any], word: str) -> None:
    backend: Any = SimpleNamespace(**{"holder": None, "cancels": 0, "state": BackendState.OPEN, "stale": False, **what})
    pool: Any = SimpleNamespace(stale=[backend] if backend.stale else [])
    assert sockets._state(pool, backend) == word


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (("192.0.2.1", 5), ("192.0.2.1", 5)),
        (("2001:db8::1", 5, 0, 0), ("2001:db8::1", 5)),
        ("", ("unix", 0)),
        (b"\0abstract", ("unix", 0)),
        (None, ("unix", 0)),
    ],
)
def test_addresses(name: Any, shown: tuple[str, int]) -> None:
    transport = FakeTransport(peername=name, sockname=("10.0.0.1", 6432))
    assert sockets._addresses(transport) == (*shown, "10.0.0.1", 6432)


def test_the_pid_of_a_client_on_a_unix_socket_that_is_gone() -> None:
    with socket.socket(socket.AF_UNIX) as closed:
        closed.close()
        assert sockets._peer_pid(FakeTransport(socket=closed)) == 0


def test_the_encryption_is_version_and_cipher() -> None:
    tls = SimpleNamespace(version=lambda: "TLSv1.3", cipher=lambda: ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256))
    assert sockets._tls(FakeTransport(ssl_object=tls), "tcp") == "TLSv1.3/TLS_AES_256_GCM_SHA384"
    assert sockets._tls(FakeTransport(ssl_object=SimpleNamespace(cipher=lambda: None)), "tcp") == ""
    assert sockets._tls(FakeTransport(), "quic") == "TLSv1.3/QUIC"


async def test_active_sockets_are_those_that_have_something_to_send() -> None:
    room = Room()
    first, second = await room.enter(), await room.enter()
    first.transport.buffered = 77
    (row,) = rows(await second.query("SHOW ACTIVE_SOCKETS"))
    assert (row["id"], row["send_avail"]) == (str(first.session.id), "77")
    assert len(rows(await second.query("SHOW SOCKETS"))) == 3
    await room.end()
