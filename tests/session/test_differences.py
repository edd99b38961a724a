"""Where a client that pipelines can tell that it does not talk to Postgres itself, and that it does no harm.

After the last step of each, the session and its backend go on as ever.
"""

from __future__ import annotations

import pytest

from helpers.conversations import ONE, SYNC, run
from helpers.pipeline_differences import IN_PIPELINES, READY
from helpers.postgres_model import PostgresModel
from helpers.session_pair import SessionPair
from helpers.transcript import transcript
from pgtrunk.wire.frontend import close_statement, execute, parse, query


@pytest.mark.parametrize("name", IN_PIPELINES)
async def test_a_difference(name: str) -> None:
    _, steps, theirs, ours = IN_PIPELINES[name]
    pair = SessionPair(backends=2)
    client, postgres = pair.connect(), PostgresModel()
    for step in steps[:-1]:
        assert client.send(step) == transcript(postgres.feed(step))
    assert transcript(postgres.feed(steps[-1])) == theirs
    assert client.send(steps[-1]) == ours
    client.send(query(b"rollback"))
    assert client.send(parse(b"x", ONE) + run(b"x", b"7") + SYNC)[2] == "DataRow 7"
    pair.check_idle()


async def test_answers_may_come_earlier_than_postgres_gives_them() -> None:
    """Postgres keeps its answers until Sync or Flush; what the gateway knows itself it says at once."""
    pair = SessionPair(backends=1)
    client = pair.connect()
    client.send(parse(b"a", ONE) + SYNC)
    assert client.send(parse(b"b", ONE) + close_statement(b"b")) == ["ParseComplete", "CloseComplete"]
    assert client.send(execute(b"no") + SYNC)[-1] == READY
