"""Where a client that pipelines can tell that it does not talk to Postgres itself: all that is known.

Each is a conversation whose last step is answered otherwise. ARCHITECTURE.md has the same table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from helpers.conversations import COPY, ONE, SYNC, TEXT, once, run
from pgtrunk.wire.frontend import COPY_DONE_MESSAGE, close_statement, describe_statement, parse, query

__all__ = ["IN_PIPELINES", "READY", "PipelineDifference"]

ABORTED: Final = (
    "ErrorResponse ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block"
)
MISSING: Final = 'ErrorResponse ERROR 26000 prepared statement "s" does not exist'
UNKNOWN: Final = 'ErrorResponse ERROR 26000 prepared statement "no" does not exist'
READY: Final = "ReadyForQuery I"
ROW: Final = ["BindComplete", "DataRow 1", "CommandComplete SELECT 1"]


class PipelineDifference(NamedTuple):
    """``why`` it is so, what is written, and how the last of it is answered by Postgres, and by us."""

    why: str
    steps: list[bytes]
    theirs: list[str]
    ours: list[str]


IN_PIPELINES: Final[dict[str, PipelineDifference]] = {
    "an unnamed statement whose Parse failed is parsed again when it is used": PipelineDifference(
        "nothing in the answer to a plain batch says which of its messages failed",
        [once(b"selec") + SYNC, run() + SYNC],
        ["ErrorResponse ERROR 26000 unnamed prepared statement does not exist", READY],
        ['ErrorResponse ERROR 42601 syntax error at or near "selec"', READY],
    ),
    "a statement that this backend lacks is refused in a failed transaction, even if it is only described": (
        PipelineDifference(
            "it has to be parsed first, which Postgres refuses there",
            [parse(b"s", b"set timezone = 'UTC'") + SYNC, query(b"begin; select 1/0"), describe_statement(b"s") + SYNC],
            ["ParameterDescription []", "NoData", "ReadyForQuery E"],
            [ABORTED, "ReadyForQuery E"],
        )
    ),
    "an error about a statement with two names may name the other": PipelineDifference(
        "statements are shared by their texts",
        [parse(b"a", ONE) + parse(b"b", ONE) + SYNC, run(b"a") + SYNC],
        ['ErrorResponse ERROR 08P01 bind message supplies 0 parameters, but prepared statement "a" requires 1', READY],
        ['ErrorResponse ERROR 08P01 bind message supplies 0 parameters, but prepared statement "b" requires 1', READY],
    ),
    "what is pipelined behind DEALLOCATE ALL may still have what was there before": PipelineDifference(
        "whether a query is DEALLOCATE ALL is known by its answer",
        [parse(b"s", ONE) + SYNC, query(b"deallocate all") + run(b"s", b"1") + SYNC],
        ["CommandComplete DEALLOCATE ALL", READY, MISSING, READY],
        ["CommandComplete DEALLOCATE ALL", READY, *ROW, READY],
    ),
    "a name that is parsed again in the pipeline in which its Parse fails gets the first error again": (
        PipelineDifference(
            "it has to be chosen before it is known whether the name is free",
            [parse(b"s", b"selec") + SYNC + parse(b"s", TEXT) + SYNC],
            ['ErrorResponse ERROR 42601 syntax error at or near "selec"', READY, "ParseComplete", READY],
            ['ErrorResponse ERROR 42601 syntax error at or near "selec"', READY] * 2,
        )
    ),
    "a statement is there that is used in the pipeline in which its Parse was skipped": PipelineDifference(
        "its text is known, by that backend too",
        [
            parse(b"a", ONE) + SYNC,
            run(b"a", b"1") + SYNC,
            run(b"no") + parse(b"b", ONE) + SYNC + run(b"b", b"1") + SYNC,
        ],
        [UNKNOWN, READY, 'ErrorResponse ERROR 26000 prepared statement "b" does not exist', READY],
        [UNKNOWN, READY, *ROW, READY],
    ),
    "a statement is gone that is used in the pipeline in which its Close was skipped": PipelineDifference(
        "by then it has been closed as if nothing had failed",
        [parse(b"s", ONE) + SYNC, run(b"no") + close_statement(b"s") + SYNC + run(b"s", b"1") + SYNC],
        [UNKNOWN, READY, *ROW, READY],
        [UNKNOWN, READY, MISSING, READY],
    ),
    "Close of a statement in the middle of COPY FROM STDIN does not end the connection": PipelineDifference(
        "the gateway answers it",
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
