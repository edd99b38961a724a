"""`retry_safe`: whether what failed may be done again without being done twice.

One exception alone is safe, unsafe or unknown, by these rules, first match first:

1. One of ours says so itself.
2. A server's last word (severity FATAL) is safe with one of our HINTs, or by its SQLSTATE, see `ENDED`; so is an error
   that asks for the transaction to be repeated, see `ROLLED_BACK`.
3. A driver that refuses a call before it sends anything is safe, see `UNSENT`.
4. All else is unknown.

Of an exception that was raised ``from`` others, the first in that chain that is not unknown decides. What was merely
being handled when it was raised never makes it safe, since it may be about something else; but where that is an error
of a driver or of the network which is not safe itself, the whole is not: asyncpg reports the end of a transaction
block on a lost connection so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import PgtrunkError
from pgtrunk.wire.hints import NOT_SENT, UNDONE

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["retry_safe"]

ENDED: Final = frozenset({
    "08001", "08004",  # no connection to the server, or it refused the pooler's login
    "25P03",  # idle in a transaction for too long: it is rolled back
    "28000", "28P01",  # login refused
    "3D000",  # no such database
    "53300",  # too many connections, or no backend became free in time
    "57P03",  # starting, stopping or recovering
    "57P05",  # idle for too long
})  # fmt: skip
"""SQLSTATEs that end a session (severity FATAL) before it has asked for anything, or while it asks for nothing."""

ROLLED_BACK: Final = frozenset({"40001", "40P01"})
"""SQLSTATEs by which Postgres asks for the whole transaction to be repeated: serialization failure and deadlock."""

UNSENT: Final = {
    "asyncpg": (
        "connection is closed", "connection has been released back to the pool", "pool is closing", "pool is closed",
        "another operation is in progress", "another operation is cancelling", "cannot switch to state",
    ),
    "psycopg": ("the connection is closed",),
    "psycopg2": ("connection already closed",),
    "psycopg_pool": ("",),  # all that it raises itself
}  # fmt: skip
"""By a driver's package: what the messages hold that say that a call was refused before anything was sent."""

DRIVERS: Final = frozenset({"asyncpg", "psycopg", "psycopg2", "psycopg_pool", "sqlalchemy"})


def retry_safe(error: BaseException) -> bool:
    """Returns whether nothing of what failed with ``error`` can have taken effect, so that a retry repeats nothing.

    For the exceptions of pgtrunk, asyncpg, psycopg and what is raised ``from`` them, as SQLAlchemy's are; of a group,
    for all in it. True does not promise that a retry will do better. Where it was in a transaction, all of that is to
    be repeated. False wherever there is a doubt.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(retry_safe, error.exceptions))
    chain = list(_causes(error))
    verdict = next((found for each in chain if (found := _judge(each)) is not None), None)
    return verdict is True and not any(_speaks_against(each) for each in chain)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__


def _speaks_against(error: BaseException) -> bool:
    """Whether it was raised while another error was handled that is not safe."""
    other = None if error.__suppress_context__ else error.__context__
    if other is None:
        return False
    foreign = not isinstance(other, OSError) and _package(other) not in DRIVERS
    return _speaks_against(other) if foreign else not retry_safe(other)


def _judge(error: BaseException) -> bool | None:
    if isinstance(error, PgtrunkError):
        return error.retry_safe
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        is_safe = sqlstate in ROLLED_BACK or (_severity(error) == "FATAL" and (sqlstate in ENDED or _is_hinted(error)))
        return True if is_safe else None
    package = _package(error)
    if package == "psycopg" and getattr(error, "pgconn", None) is not None:
        return True  # connecting failed: only then is there one
    words = str(error)
    return True if any(each in words for each in UNSENT.get(package, ())) else None


def _is_hinted(error: BaseException) -> bool:
    hint = getattr(error, "hint", None) or getattr(getattr(error, "diag", None), "message_hint", None)
    return hint in (NOT_SENT, UNDONE)


def _severity(error: BaseException) -> object:
    diag = getattr(error, "diag", error)
    for name in ("severity_nonlocalized", "severity_en", "severity"):
        if (found := getattr(diag, name, None)) is not None:
            return found
    return None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
