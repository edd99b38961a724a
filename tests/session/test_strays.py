"""What Postgres says by itself, whenever it likes: ahead of any message of an answer, behind it, and between answers.

A notice (of a trigger, or of whoever ends a backend), a setting that a reload has changed, a notification. Nothing else
may change by them: neither what the client is told besides, nor what it is taken for.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.conversations import CONVERSATIONS
from helpers.postgres_model import PostgresModel
from helpers.session_pair import SessionPair, Splitter, pieces, whole
from helpers.transcript import transcript
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import encode, messages
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.relay.terms import Terms

if TYPE_CHECKING:
    from helpers.session_pair import Link

SETTING: Final = "in_hot_standby"
"""Reported, and nobody's to set: it changes in a server that becomes the primary."""
NOTICE: Final = server.notice("00000", "by the way")
NOTIFICATION: Final = encode(b"A", b"\0\0\0\1channel\0\0")
STRAYS: Final = {
    "notice": NOTICE,
    "setting": server.parameter_status(SETTING, "off"),
    "notification": NOTIFICATION,
    "all of them": NOTICE + server.parameter_status(SETTING, "on") + NOTIFICATION + NOTICE,
}


class Talkative(SessionPair):
    """Its backends have something else to say ahead of each message and behind the last, in answer to nothing too."""

    def __init__(self, stray: bytes, **options: Any) -> None:
        self.stray = stray
        super().__init__(**options)

    def answer(self, link: Link, data: bytes) -> None:
        said = b"".join(self.stray + data[start:end] for _, start, end in messages(data))
        super().answer(link, said + self.stray)


def is_stray(line: str) -> bool:
    return line.endswith(" by the way") or line.startswith(f"ParameterStatus {SETTING}=")


def without_strays(lines: list[str]) -> list[str]:
    """In the order of `transcript`, as if they had not been there."""
    kept = [line for line in lines if not is_stray(line)]
    return [
        line
        for reports, group in itertools.groupby(kept, key=lambda line: line.startswith("ParameterStatus"))
        for line in (sorted(group) if reports else group)
    ]


@pytest.mark.parametrize("split", [whole, pieces(1), pieces(7)], ids=["whole", "1", "7"])
@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_nothing_else_changes(name: str, stray: str, split: Splitter) -> None:
    pair = Talkative(STRAYS[stray], backends=2, split=split)
    client, postgres = pair.connect(), PostgresModel()
    told = []
    for step in CONVERSATIONS[name]:
        received = client.send(step)
        told += received
        assert without_strays(received) == transcript(postgres.feed(step))
    assert any(map(is_stray, told)) is (stray != "notification")
    assert not any(line.startswith("NotificationResponse") for line in told)
    if not postgres.closed:
        pair.check_idle()


@pytest.mark.parametrize("stray", STRAYS)
async def test_whoever_has_the_backend_next_is_not_told(stray: str) -> None:
    """What an idle backend has said was for nobody, and it stays as good as it was."""
    pair = SessionPair(backends=1)
    (link,) = pair.links
    one, other = pair.connect(), pair.connect()
    for client in (one, other, one):
        assert len(client.send(query(b"select 1"))) == 4
        pair.answer(link, STRAYS[stray])
        pair.pump()
        assert (one.read(), other.read()) == ([], [])
    pair.check_idle()


@pytest.mark.parametrize("stray", STRAYS)
async def test_who_is_in_a_transaction_is_told_at_once(stray: str) -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.send(query(b"begin"))
    client.send(query(b"select 1"))
    pair.answer(link, STRAYS[stray])
    pair.pump()
    told = client.read()
    assert all(map(is_stray, told))
    assert bool(told) is (stray != "notification")
    assert client.send(query(b"commit"))[-1] == "ReadyForQuery I"
    pair.check_idle()


@pytest.mark.parametrize("stray", STRAYS)
async def test_who_keeps_its_backend_is_told_between_queries(stray: str) -> None:
    """In session mode notifications are for it too: nobody else can have listened there."""
    pair = SessionPair(backends=1, terms=Terms(pool_mode="session", tracked=False))
    (link,) = pair.links
    client = pair.connect()
    client.send(query(b"select 1"))
    for _ in range(2):
        pair.answer(link, STRAYS[stray])
        pair.pump()
        assert client.read() == transcript(STRAYS[stray])
        assert len(client.send(query(b"select 1"))) == 4
