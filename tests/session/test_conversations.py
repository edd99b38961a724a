"""Each conversation through the gateway, before one and before several backends: a client sees what Postgres says.

The steps of a conversation meet another backend whenever none is held. Each is also cut into single octets and into
short pieces, in both directions; bytes and states must be the same.
"""

from __future__ import annotations

import pytest

from helpers.conversations import CONVERSATIONS, MALFORMED, SYNC, roughly, run
from helpers.postgres_model import PostgresModel
from helpers.session_pair import SessionPair, Splitter, pieces, whole
from helpers.transcript import transcript
from pgtrunk.wire.frontend import parse, query


@pytest.mark.parametrize("split", [whole, pieces(1), pieces(7), pieces(64)], ids=["whole", "1", "7", "64"])
@pytest.mark.parametrize("backends", [1, 2, 3])
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_client_sees_what_postgres_says(name: str, backends: int, split: Splitter) -> None:
    pair = SessionPair(backends=backends, split=split)
    client, postgres = pair.connect(), PostgresModel()
    for step in CONVERSATIONS[name]:
        assert client.send(step) == transcript(postgres.feed(step))
    if not postgres.closed:
        pair.check_idle()


@pytest.mark.parametrize("split", [whole, pieces(1), pieces(7)], ids=["whole", "1", "7"])
@pytest.mark.parametrize("backends", [1, 3])
@pytest.mark.parametrize("name", [name for name, steps in CONVERSATIONS.items() if b"begin" in b"".join(steps)])
async def test_so_it_is_where_begin_waits_for_what_follows_it(name: str, backends: int, split: Splitter) -> None:
    pair = SessionPair(backends=backends, split=split, lazy_begin=True)
    client, postgres = pair.connect(), PostgresModel()
    for step in CONVERSATIONS[name]:
        assert client.send(step) == transcript(postgres.feed(step))
    pair.check_idle()


@pytest.mark.parametrize("split", [whole, pieces(1)], ids=["whole", "1"])
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_each_step_may_be_the_first_of_such_a_transaction(name: str, split: Splitter) -> None:
    """It is rolled back, and the next step is the first of the next."""
    pair = SessionPair(backends=1, split=split, lazy_begin=True)
    client, postgres = pair.connect(), PostgresModel()
    begins, ends = query(b"begin"), SYNC + query(b"rollback")
    for step in CONVERSATIONS[name]:
        for part in (begins, step, ends):
            # What is said in the middle of a COPY is the end of it.
            if not postgres.closed and (part is step or not postgres.copying):
                assert client.send(part) == transcript(postgres.feed(part))
    if not postgres.closed and not postgres.copying:
        pair.check_idle()


@pytest.mark.parametrize("message", MALFORMED, ids=repr)
@pytest.mark.parametrize("backends", [1, 2])
async def test_malformed_messages_are_refused_as_postgres_refuses_them(message: bytes, backends: int) -> None:
    for split in (whole, pieces(1)):
        pair = SessionPair(backends=backends, split=split)
        client, postgres = pair.connect(), PostgresModel()
        for step in (
            parse(b"s", b"select $1::int") + SYNC,
            message + SYNC + query(b"select 1"),
            run(b"s", b"1") + SYNC,
        ):
            assert roughly(client.send(step)) == roughly(transcript(postgres.feed(step)))
        pair.check_idle()


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_few_prepared_statements_per_backend_change_nothing(name: str, limit: int) -> None:
    pair = SessionPair(backends=1, prepared=limit)
    client, postgres = pair.connect(), PostgresModel()
    for step in CONVERSATIONS[name]:
        assert client.send(step) == transcript(postgres.feed(step))
    (link,) = pair.links
    # What one batch uses is not closed in the middle of it.
    assert len(link.model.statements.keys() - {""}) <= limit + 1


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_another_session_in_between_changes_nothing(name: str) -> None:
    """The other holds the same names for other statements, and an unnamed one of its own, on the only backend."""
    pair = SessionPair(backends=1)
    client, other, postgres = pair.connect(), pair.connect(), PostgresModel()
    intruder = [step for kept in ("duplicate name", "unnamed later") for step in CONVERSATIONS[kept]]
    for at, step in enumerate(CONVERSATIONS[name]):
        assert client.send(step) == transcript(postgres.feed(step))
        if pair.pool.free:
            other.send(intruder[at % len(intruder)])
