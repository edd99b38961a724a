"""What tests of a session's state do with a :class:`~helpers.session_pair.SessionPair`: settings, pins, reloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.conversations import SYNC, once
from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import query

if TYPE_CHECKING:
    from helpers.session_pair import PairedClient, SessionPair
    from pgtrunk_gateway.relay.terms import Terms

__all__ = [
    "KEEPS", "KINDS", "NOTIFICATION", "NOTIFIED", "PINS", "batch", "flights", "pinned", "shown", "step", "switch",
]  # fmt: skip

PINS = {
    "LISTEN": (b"listen news", b"unlisten *"),
    "temporary table": (b"create temp table mine (a int)", b"drop table mine"),
    "advisory lock": (b"select pg_advisory_lock(7)", b"select pg_advisory_unlock(7)"),
    "cursor WITH HOLD": (b"declare c cursor with hold for select 1", b"close c"),
}
"""By their words: what pins a session, and what frees it."""
KEEPS = "NoticeResponse NOTICE 00000 this session keeps its server connection from now on: "
NOTIFICATION = encode(b"A", b"\0\0\0\1news\0hello\0")
NOTIFIED = "NotificationResponse b'news\\x00hello\\x00'"


def batch(text: bytes) -> bytes:
    return once(text) + SYNC


KINDS = {"simple": query, "extended": batch}


def shown(client: PairedClient, name: str = "lock_timeout") -> str:
    """What the session has."""
    return client.send(query(b"show " + name.encode()))[1].removeprefix("DataRow ")


def pinned(pair: SessionPair, text: bytes = b"listen news") -> PairedClient:
    """A client that keeps its backend."""
    client = pair.connect()
    client.send(query(text))
    assert client.session.pins
    return client


def switch(client: PairedClient, terms: Terms) -> None:
    """A reload."""
    assert client.session.admission is not None
    client.session.admission.terms = terms
    client.session.reconfigure()


def step(pair: SessionPair, client: PairedClient, data: bytes) -> None:
    """Sends ``data``, and carries it to the only backend and the answer back; the inquiry that follows stays unsent."""
    client.feed(data)
    pair.carry(pair.links[0])


def flights(pair: SessionPair) -> str:
    """The messages that the backends have got since the last time."""
    kinds = "".join("".join(link.model.received) for link in pair.links)
    for link in pair.links:
        link.model.received.clear()
    return kinds
