"""The model that other tests trust, held against a real server: the same conversations, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from helpers.conversations import CONVERSATIONS, MALFORMED, SYNC, roughly, run
from helpers.raw_postgres import RawConnection
from helpers.transcript import transcript
from pgtrunk.wire.frontend import parse, query

if TYPE_CHECKING:
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres


@pytest.fixture
def connection(postgres: EmbeddedPostgres) -> Iterator[RawConnection]:
    """To a server on which ``t`` is empty."""
    with RawConnection(postgres, "postgres") as setup:
        setup.send(query(b"drop table if exists t; create table t (a int)"))
        setup.ready()
        with RawConnection(postgres, "postgres") as connection:
            yield connection
        setup.send(query(b"drop table t"))
        setup.ready()


@pytest.mark.parametrize("message", MALFORMED, ids=repr)
def test_it_refuses_what_postgres_refuses(message: bytes, connection: RawConnection) -> None:
    model = connection.model()
    for step in (parse(b"s", b"select $1::int") + SYNC, message + SYNC + query(b"select 1"), run(b"s", b"1") + SYNC):
        connection.send(step)
        expected = transcript(model.feed(step))
        assert roughly(transcript(connection.read(len(expected)))) == roughly(expected)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_model_answers_as_postgres_does(name: str, connection: RawConnection) -> None:
    model = connection.model()
    for step in CONVERSATIONS[name]:
        connection.send(step)
        expected = transcript(model.feed(step))
        assert transcript(connection.read(len(expected))) == expected
    if not model.closed:
        # Whatever else the server had to say would come before the answer to this.
        connection.send(SYNC)
        expected = transcript(model.feed(SYNC))
        assert transcript(connection.read(len(expected))) == expected
