"""Transactions that have begun without a backend, at a :class:`~helpers.session_pair.SessionPair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.wire.frontend import query
from pgtrunk_gateway.session.state import State

if TYPE_CHECKING:
    from helpers.session_pair import PairedClient, SessionPair

__all__ = [
    "ABORTED",
    "AHEAD",
    "BEGIN",
    "BEGUN",
    "COMMIT",
    "INSERT",
    "ONE",
    "ROLLBACK",
    "SELECT",
    "begun",
    "sent",
    "tags",
]

BEGIN, COMMIT, ROLLBACK, SELECT = (query(text) for text in (b"begin", b"commit", b"rollback", b"select 1"))
INSERT = b"insert into t values (1)"
BEGUN = ["CommandComplete BEGIN", "ReadyForQuery T"]
ONE = ["RowDescription ?column?:23", "DataRow 1", "CommandComplete SELECT 1"]
ABORTED = "ErrorResponse ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block"
AHEAD = "PBECH"
"""The kinds of the messages that BEGIN is when it is sent."""


def begun(pair: SessionPair, **settings: str) -> PairedClient:
    """A client that has said BEGIN."""
    client = pair.connect(**settings)
    assert client.send(BEGIN) == BEGUN
    assert client.session.state is State.BEGUN
    return client


def sent(pair: SessionPair) -> str:
    """The kinds of the messages that Postgres has got since the last time."""
    received = pair.links[0].model.received
    kinds = "".join(received)
    received.clear()
    return kinds


def tags(*answers: str) -> list[str]:
    """The answers to commands, each with the status behind it: "COMMIT I"."""
    return [line for answer in answers for line in (f"CommandComplete {answer[:-2]}", f"ReadyForQuery {answer[-1]}")]
