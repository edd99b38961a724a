"""Where a client can tell that it does not talk to Postgres itself: all that is known, and that it does no harm.

Each is a conversation whose last step is answered otherwise; after it, the session and its backend go on as ever.
"""

from __future__ import annotations

import pytest

from helpers.conversations import COPY, ONE, SYNC, TEXT, once, run
from helpers.postgres_model import PostgresModel
from helpers.session_pair import SessionPair
from helpers.transcript import transcript
from pgtrunk.wire.frontend import COPY_DONE_MESSAGE, close_statement, describe_statement, execute, parse, query

ABORTED = "ErrorResponse ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block"
MISSING = 'ErrorResponse ERROR 26000 prepared statement "s" does not exist'
READY = "ReadyForQuery I"
ROW = ["BindComplete", "DataRow 1", "CommandComplete SELECT 1"]

DIFFERENCES: dict[str, tuple[list[bytes], list[str], list[str]]] = {
    # Nothing in the answer to a plain batch says which of its messages failed.
    "an unnamed statement whose Parse failed is parsed again when it is used": (
        [once(b"selec") + SYNC, run() + SYNC],
        ["ErrorResponse ERROR 26000 unnamed prepared statement does not exist", READY],
        ['ErrorResponse ERROR 42601 syntax error at or near "selec"', READY],
    ),
    # The statement has to be parsed on this backend first, which Postgres refuses there.
    "describing in a failed transaction what this backend lacks": (
        [parse(b"s", b"set timezone = 'UTC'") + SYNC, query(b"begin; select 1/0"), describe_statement(b"s") + SYNC],
        ["ParameterDescription []", "NoData", "ReadyForQuery E"],
        [ABORTED, "ReadyForQuery E"],
    ),
    # Statements are shared by their texts; the name in an error is one of the client's own, but not always the one.
    "an error about a statement with two names": (
        [parse(b"a", ONE) + parse(b"b", ONE) + SYNC, run(b"a") + SYNC],
        ['ErrorResponse ERROR 08P01 bind message supplies 0 parameters, but prepared statement "a" requires 1', READY],
        ['ErrorResponse ERROR 08P01 bind message supplies 0 parameters, but prepared statement "b" requires 1', READY],
    ),
    # Whether a query is DEALLOCATE ALL is known by its answer.
    "what is pipelined behind DEALLOCATE ALL may still have what was there before": (
        [parse(b"s", ONE) + SYNC, query(b"deallocate all") + run(b"s", b"1") + SYNC],
        ["CommandComplete DEALLOCATE ALL", READY, MISSING, READY],
        ["CommandComplete DEALLOCATE ALL", READY, *ROW, READY],
    ),
    # The gateway has to choose before it is known whether the name is free.
    "a name parsed again behind its own failure in a pipeline": (
        [parse(b"s", b"selec") + SYNC + parse(b"s", TEXT) + SYNC],
        ['ErrorResponse ERROR 42601 syntax error at or near "selec"', READY, "ParseComplete", READY],
        ['ErrorResponse ERROR 42601 syntax error at or near "selec"', READY] * 2,
    ),
    # The same: the text is known, by that backend too.
    "a statement that is used in a pipeline in which its Parse was skipped": (
        [
            parse(b"a", ONE) + SYNC,
            run(b"a", b"1") + SYNC,
            run(b"no") + parse(b"b", ONE) + SYNC + run(b"b", b"1") + SYNC,
        ],
        [
            'ErrorResponse ERROR 26000 prepared statement "no" does not exist',
            READY,
            'ErrorResponse ERROR 26000 prepared statement "b" does not exist',
            READY,
        ],
        ['ErrorResponse ERROR 26000 prepared statement "no" does not exist', READY, *ROW, READY],
    ),
    # The same: by then it has been closed, or parsed, as if nothing had failed.
    "a name closed behind a failure in a pipeline": (
        [
            parse(b"s", ONE) + SYNC,
            run(b"no") + close_statement(b"s") + SYNC + run(b"s", b"1") + SYNC,
        ],
        ['ErrorResponse ERROR 26000 prepared statement "no" does not exist', READY, *ROW, READY],
        ['ErrorResponse ERROR 26000 prepared statement "no" does not exist', READY, MISSING, READY],
    ),
    # Postgres would end the connection: its stream of messages is out of step.
    "closing a statement in the middle of a copy": (
        [parse(b"s", ONE) + SYNC, once(COPY) + close_statement(b"s") + SYNC + COPY_DONE_MESSAGE + SYNC],
        [
            "ParseComplete",
            "BindComplete",
            "NoData",
            "CopyInResponse",
            "ErrorResponse ERROR 08P01 unexpected message type 0x43 during COPY from stdin",
            "ErrorResponse FATAL 08P01 terminating connection because protocol synchronization was lost",
        ],
        [
            "ParseComplete",
            "BindComplete",
            "NoData",
            "CopyInResponse",
            "CommandComplete COPY 0",
            "CloseComplete",
            READY,
        ],
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
async def test_a_difference(name: str) -> None:
    steps, theirs, ours = DIFFERENCES[name]
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
