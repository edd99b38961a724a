"""Where a client can tell that it does not talk to Postgres itself, though it waits for each answer: all that is known.

Each is a conversation whose last step is answered otherwise. ARCHITECTURE.md has the same table, together with
:mod:`helpers.pipeline_differences`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from behaviour.statement_conversations import batch, once, run, said
from pgtrunk.wire.frontend import describe_statement, parse

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["ALL_MODES", "DIFFERENCES", "NO_BLOCKS", "PINNED", "SHARING", "Difference"]

SHARING: Final = ("transaction", "statement")
ALL_MODES: Final = ("session", *SHARING)
READY: Final = "ReadyForQuery I"
PINNED: Final = "NoticeResponse NOTICE 00000 this session keeps its server connection from now on: "
"""How the notice begins that a session gets which keeps its backend."""
NO_BLOCKS: Final = "ErrorResponse FATAL 0A000 transaction blocks not allowed in statement pooling mode"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is asked, and how the last of it is answered by Postgres, and by us.

    A step may depend on the pid in the session's BackendKeyData.
    """

    why: str
    steps: list[Step | Callable[[int], Step]]
    theirs: list[str]
    ours: list[str]
    modes: tuple[str, ...] = SHARING
    """The pool modes in which it is so."""
    startup: Mapping[str, str] = field(default_factory=dict)
    """Of the session's startup packet."""
    late: str = ""
    """The kind of a message that we send behind the end of the last step."""
    pause: float = 0.0
    """Seconds before the last step."""
    fields: str = ""
    """Which fields of errors are looked at beside the usual ones."""


def row(name: str, oid: int, value: str, tag: str = "SELECT 1") -> list[str]:
    """The answer to a query that gives one row of one column."""
    return [f"RowDescription {name}:{oid}", f"DataRow {value}", f"CommandComplete {tag}", READY]


BOOL, INT8, TEXT, DATE = 16, 20, 25, 1082
LONG: Final = "n" * 64
SHORT: Final = "n" * 63
LARGE: Final = parse(b"large", b"select 1 -- " + b"x" * (16 << 20))
UNNAMED: Final = parse(b"", b"select 1 -- " + b"x" * (16 << 20))
TIMEZONE: Final = 'ErrorResponse FATAL 22023 invalid value for parameter "TimeZone": "Nowhere/Land"'

DIFFERENCES: Final[dict[str, Difference]] = {
    "a NOTICE behind the ReadyForQuery of a transaction that has left something only its backend has": Difference(
        why="the session keeps that backend, and is told so; session_state decides",
        steps=[said(b"listen difference")],
        theirs=["CommandComplete LISTEN", READY],
        ours=["CommandComplete LISTEN", READY, f"{PINNED}LISTEN"],
        late="N",
    ),
    "now(), the snapshot and Postgres' own time limits of a transaction begin with what follows BEGIN": Difference(
        why="BEGIN by itself takes no backend, and travels with what follows it; lazy_begin = off sends it at once",
        steps=[said(b"begin"), said(b"select statement_timestamp() - now() > '300 ms' as late")],
        theirs=[*row("late", BOOL, "t")[:3], "ReadyForQuery T"],
        ours=[*row("late", BOOL, "f")[:3], "ReadyForQuery T"],
        modes=("transaction",),
        pause=0.6,
    ),
    "a transaction block ends the session": Difference(
        why="pool_mode = statement says that there are none",
        steps=[said(b"begin")],
        theirs=["CommandComplete BEGIN", "ReadyForQuery T"],
        ours=[NO_BLOCKS],
        modes=("statement",),
    ),
    "currval(), lastval() and what setseed() began are known in the same transaction only": Difference(
        why="they are in the backend, and cannot be carried to another",
        steps=[said(b"select nextval('counted') > 0 as ok"), said(b"select currval('counted') > 0 as ok")],
        theirs=row("ok", BOOL, "t"),
        ours=[
            f"RowDescription ok:{BOOL}",
            'ErrorResponse ERROR 55000 currval of sequence "counted" is not yet defined in this session',
            READY,
        ],
    ),
    "what functions, and texts that are put together on the server, set or make does not follow the session": (
        Difference(
            why="it cannot be seen in the text of a query; it stays on the backend on which it was done",
            steps=[
                said(b"select sets_out_of_sight()"),
                said(b"select coalesce(current_setting('unseen.value', true), '') as v"),
            ],
            theirs=row("v", TEXT, "x"),
            ours=row("v", TEXT, ""),
        )
    ),
    "a prepared statement with literals means what they mean under the settings of when it is used": Difference(
        why="another backend parses it again; so DateStyle, IntervalStyle, TimeZone, client_encoding and"
        " standard_conforming_strings count as part of the text",
        steps=[
            said(b"set datestyle = 'iso, mdy'"),
            batch(parse(b"s", b"select '02/03/2004'::date as d")),
            said(b"set datestyle = 'iso, dmy'"),
            batch(run(b"s")),
        ],
        theirs=["BindComplete", "RowDescription d:1082", "DataRow 2004-02-03", "CommandComplete SELECT 1", READY],
        ours=["BindComplete", "RowDescription d:1082", "DataRow 2004-03-02", "CommandComplete SELECT 1", READY],
    ),
    "pg_prepared_statements has other names, and statements of others": Difference(
        why="backends are shared, and the names on them are the gateway's",
        steps=[
            batch(parse(b"shown", b"select 1")),
            said(b"select count(*) from pg_prepared_statements where name = 'shown'"),
        ],
        theirs=row("count", INT8, "1"),
        ours=row("count", INT8, "0"),
    ),
    "the position in an error of a text with PREPARE, EXECUTE or DEALLOCATE may be another": Difference(
        why="it counts the characters of the gateway's name",
        steps=[said(b"prepare abcd as selec")],
        theirs=['ErrorResponse ERROR 42601 syntax error at or near "selec" P=17', READY],
        ours=['ErrorResponse ERROR 42601 syntax error at or near "selec" P=19', READY],
        fields="P",
    ),
    "the WARNING about SET LOCAL outside of a block is missing in a batch that first uses what PREPARE has made": (
        Difference(
            why="another backend runs the PREPARE again, in the same batch, and to Postgres that makes it a pipeline",
            steps=[
                said(b"prepare made as select 7"),
                batch(describe_statement(b"made"), once(b"set local work_mem = '3MB'")),
            ],
            theirs=[
                "ParameterDescription []",
                "RowDescription ?column?:23",
                "ParseComplete",
                "BindComplete",
                "NoData",
                "NoticeResponse WARNING 25P01 SET LOCAL can only be used in transaction blocks",
                "CommandComplete SET",
                READY,
            ],
            ours=[
                "ParameterDescription []",
                "RowDescription ?column?:23",
                "ParseComplete",
                "BindComplete",
                "NoData",
                "CommandComplete SET",
                READY,
            ],
        )
    ),
    "the NOTICE is missing that the name in PREPARE, EXECUTE or DEALLOCATE is cut off": Difference(
        why="the gateway's name is not",
        steps=[said(b"prepare " + LONG.encode() + b" as select 1")],
        theirs=[
            f'NoticeResponse NOTICE 42622 identifier "{LONG}" will be truncated to "{SHORT}"',
            "CommandComplete PREPARE",
            READY,
        ],
        ours=["CommandComplete PREPARE", READY],
    ),
    "a setting with a dot that is not set any more may read NULL instead of empty": Difference(
        why="Postgres remembers on each backend that it has once been set there",
        steps=[
            said(b"set app.once = 'x'"),
            said(b"reset app.once"),
            said(b"select current_setting('app.once', true) is null as gone"),
        ],
        theirs=row("gone", BOOL, "f"),
        ours=row("gone", BOOL, "t"),
    ),
    "RESET of what the startup packet asked for gives the server's default, up to the end of the transaction": (
        Difference(
            why="to the backend it is an ordinary setting",
            startup={"options": "-c work_mem=2345kB"},
            steps=[said(b"set work_mem = '3MB'"), said(b"reset work_mem; show work_mem")],
            theirs=["CommandComplete RESET", *row("work_mem", TEXT, "2345kB", "SHOW")],
            ours=["CommandComplete RESET", *row("work_mem", TEXT, "4MB", "SHOW")],
            modes=ALL_MODES,
        )
    ),
    "a RESET of what the startup packet asked for is reported twice, the second time behind ReadyForQuery": Difference(
        why="the same: first the backend tells what it has now, then the gateway what the session has",
        startup={"application_name": "starts"},
        steps=[said(b"set application_name = 'x'"), said(b"reset application_name")],
        theirs=["CommandComplete RESET", READY, "ParameterStatus application_name=starts"],
        ours=[
            "CommandComplete RESET",
            READY,
            "ParameterStatus application_name=",
            "ParameterStatus application_name=starts",
        ],
        late="S",
        modes=ALL_MODES,
    ),
    "a setting of the startup packet that Postgres refuses is refused with the first request": Difference(
        why="the login needs no backend",
        startup={"TimeZone": "Nowhere/Land"},
        steps=[said(b"select 1")],
        theirs=[TIMEZONE],
        ours=[TIMEZONE],
        modes=ALL_MODES,
    ),
    "a setting of the startup packet that Postgres spells otherwise is reported so with the first request": Difference(
        why="the same",
        startup={"DateStyle": "german"},
        steps=[said(b"show datestyle")],
        theirs=row("DateStyle", TEXT, "German, DMY", "SHOW"),
        ours=[*row("DateStyle", TEXT, "German, DMY", "SHOW"), "ParameterStatus DateStyle=German, DMY"],
        modes=ALL_MODES,
    ),
    "pg_backend_pid(), and what pg_stat_activity says of the connection, are not those of the session": Difference(
        why="they are the backend's; the pid in BackendKeyData is the gateway's, for cancels",
        steps=[lambda pid: said(b"select pg_backend_pid() = %d as own" % pid)],
        theirs=row("own", BOOL, "t"),
        ours=row("own", BOOL, "f"),
        modes=ALL_MODES,
    ),
    "a Parse of more than 16 MiB that names its statement, and any message above max_packet_size, ends the session": (
        Difference(
            why="the text of a named statement is kept, for other backends; max_packet_size",
            steps=[batch(LARGE)],
            theirs=["ParseComplete", READY],
            ours=[f"ErrorResponse FATAL 54000 a message of type 'P' with {len(LARGE) - 1} octets is too large"],
            modes=ALL_MODES,
        )
    ),
    "the unnamed statement, where it has more than 16 MiB, may be gone after the transaction of its Parse": Difference(
        why="its text is not kept, and another backend does not have it",
        steps=[batch(UNNAMED), batch(run())],
        theirs=["BindComplete", *row("?column?", 23, "1")],
        ours=["ErrorResponse ERROR 26000 the unnamed prepared statement was too long to be kept", READY],
    ),
}
