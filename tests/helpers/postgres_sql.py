"""The SQL that :mod:`helpers.postgres_model` knows: enough to show every reply, a few words of each kind.

Texts mean in Postgres what they mean here, so that the model can be held against a server.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pgtrunk.wire.framing import encode

INT4, INT8, TEXT, VOID = 23, 20, 25, 2278


class SqlError(Exception):
    """An ErrorResponse. ``fatal``: the connection ends with it."""

    def __init__(self, sqlstate: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.fatal = fatal


@dataclass(frozen=True, slots=True)
class Rows:
    """A command that gives rows of one column. ``values``: of the parameters and the session -> the rows."""

    column: str
    oid: int
    values: Callable[[list[bytes | None], Session], list[bytes | None]]
    types: tuple[int, ...] = ()
    tag: str = "SELECT"
    plan_error: SqlError | None = None
    """Raised when it is planned: at Bind, in the extended protocol."""
    sleeps: bool = False


@dataclass(frozen=True, slots=True)
class Utility:
    """A command without rows, known by its words."""

    words: str
    arguments: tuple[str, ...] = ()
    tag: str = ""
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """``COPY t FROM STDIN`` or ``TO STDOUT`` of a table with one integer column."""

    inwards: bool
    table: str
    types: tuple[int, ...] = ()


Command: TypeAlias = Rows | Utility | Copy
EXIT = frozenset({"commit", "rollback"})
TRANSACTION = EXIT | {"begin"}


@dataclass(slots=True)
class Session:
    """What the words of a session can read: its settings, and the rows that it sees."""

    settings: dict[str, str] = field(default_factory=dict)
    rows: Callable[[str], list[int]] = lambda table: []


@dataclass(slots=True)
class Store:
    """The committed rows of each table."""

    tables: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Prepared:
    command: Command | None
    """None: an empty query."""
    types: tuple[int, ...]
    text: bytes = b""


@dataclass(slots=True)
class Portal:
    command: Command | None
    values: list[bytes | None]
    rows: list[bytes | None] | None = None
    """What is left to give; None until it first runs."""
    done: bool = False


DEFAULTS = {
    "application_name": "",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "default_transaction_read_only": "off",
    "IntervalStyle": "postgres",
    "scram_iterations": "4096",
    "search_path": '"$user", public',
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
}
"""The settings that are reported, and their values."""
OTHERS = {"lock_timeout": "0", "statement_timeout": "0", "temp_tablespaces": "", "role": "none"}
"""Some of those that are not."""
_NAMES = {name.lower(): name for name in (*DEFAULTS, *OTHERS)}
_CANONICAL = {
    ("DateStyle", "iso"): "ISO, MDY",
    ("DateStyle", "iso, dmy"): "ISO, DMY",
    ("DateStyle", "german"): "German, DMY",
    ("client_encoding", "latin1"): "LATIN1",
    ("client_encoding", "utf8"): "UTF8",
    ("TimeZone", "utc"): "UTC",
}


def setting(name: str) -> str:
    try:
        return _NAMES[name.lower()]
    except KeyError:
        raise SqlError("42704", f'unrecognized configuration parameter "{name}"') from None


def canonical(name: str, value: str) -> str:
    if name == "DateStyle" and value.lower().split(",")[0] not in ("iso", "german", "sql", "postgres"):
        raise SqlError("22023", f'invalid value for parameter "DateStyle": "{value}"')
    if name.endswith("_timeout") and not re.fullmatch(r"\d+(ms|s)?", value):
        raise SqlError("22023", f'invalid value for parameter "{name}": "{value}"')
    if name == "role" and value == "nobody":
        raise SqlError("22023", 'role "nobody" does not exist')
    return _CANONICAL.get((name, value.lower()), value)


def split(sql: str) -> list[str]:
    """The commands of a simple query."""
    parts = re.findall(r"(?:E?'(?:[^']|'')*'|\$\$.*?\$\$|[^;'$]|\$(?!\$))+", sql, re.DOTALL)
    return [part.strip() for part in parts if part.strip()]


def parse_all(sql: str) -> list[Command]:
    """Raises :class:`SqlError` if any of the commands has a syntax error: then none of them runs."""
    return [parse(part) for part in split(sql)]


def parse(sql: str) -> Command:
    for pattern, make in _GRAMMAR:
        match = re.fullmatch(pattern, sql.strip(), re.IGNORECASE | re.DOTALL)
        if match:
            return make(*match.groups())
    raise SqlError("42601", f'syntax error at or near "{(sql.split() or [""])[0]}"')


def literal(text: str) -> str:
    """The value of a quoted literal, or of a bare word."""
    if text.startswith("E'"):
        return text[2:-1].replace("''", "'").replace("\\\\", "\\")
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return text


def _constant(column: str, oid: int, value: str) -> Rows:
    return Rows(column, oid, lambda _, __: [value.encode()])


def _parameter(type_name: str) -> Rows:
    oid, column = (INT4, "int4") if type_name.lower() == "int" else (TEXT, "text")
    return Rows(column, oid, lambda values, _: [values[0]], (oid,))


def _series(count: str) -> Rows:
    return Rows("generate_series", INT4, lambda _, __: [b"%d" % n for n in range(1, int(count) + 1)])


def _count(table: str) -> Rows:
    return Rows("count", INT8, lambda _, session: [b"%d" % len(session.rows(table))])


def _show(name: str) -> Rows:
    return Rows(setting(name), TEXT, lambda _, session: [session.settings[setting(name)].encode()], tag="SHOW")


def _fails(_: list[bytes | None], __: Session) -> list[bytes | None]:
    raise SqlError("22012", "division by zero")


def _set_config(name: str, value: str) -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[bytes | None]:
        session.settings[setting(name)] = canonical(setting(name), literal(value))
        return [session.settings[setting(name)].encode()]

    return Rows("set_config", TEXT, run)


_LITERAL = r"(E?'(?:[^']|'')*'|\w+)"
_GRAMMAR: list[tuple[str, Callable[..., Command]]] = [
    (r"select (\d+)", lambda n: _constant("?column?", INT4, n)),
    (r"select '([^']*)'", lambda text: _constant("?column?", TEXT, text)),
    (r"select \$1::(int|text)", _parameter),
    (r"select generate_series\(1, ?(\d+)\)", _series),
    (r"select count\(\*\) from (\w+)", _count),
    (r"select 1/0", lambda: Rows("?column?", INT4, _fails, plan_error=SqlError("22012", "division by zero"))),
    (r"select 1/\(random\(\)\*0\)::int", lambda: Rows("?column?", INT4, _fails)),
    (r"select pg_sleep\([\d.]+\)", lambda: Rows("pg_sleep", VOID, lambda _, __: [b""], sleeps=True)),
    (rf"select pg_catalog\.set_config\('(\w+)',{_LITERAL},false\)", _set_config),
    (r"show (\w+)", _show),
    (r"insert into (\w+) values \((-?\d+)\)", lambda *a: Utility("insert", a, "INSERT 0 1")),
    (r"begin|start transaction", lambda: Utility("begin", (), "BEGIN")),
    (r"commit", lambda: Utility("commit", (), "COMMIT")),
    (r"rollback", lambda: Utility("rollback", (), "ROLLBACK")),
    (r"reset all", lambda: Utility("reset", (), "RESET")),
    (r'reset "?(\w+)"?', lambda name: Utility("reset", (setting(name),), "RESET")),
    (rf'set "?(\w+)"? ?(?:=|to) ?{_LITERAL}', lambda *a: Utility("set", a, "SET")),
    (r"discard all", lambda: Utility("discard all", (), "DISCARD ALL")),
    (r"deallocate all", lambda: Utility("deallocate all", (), "DEALLOCATE ALL")),
    (r'deallocate "?([^"]+)"?', lambda *a: Utility("deallocate", a, "DEALLOCATE")),
    (r"do \$\$ ?begin raise notice '(\w+)'; end ?\$\$", lambda *a: Utility("notice", a, "DO")),
    (r"copy (\w+) from stdin", lambda table: Copy(True, table)),
    (r"copy (\w+) to stdout", lambda table: Copy(False, table)),
]


# -- messages --------------------------------------------------------------------------------------------------------

_SIZES = {INT4: 4, INT8: 8, TEXT: -1, VOID: 4}


def row_description(command: Rows) -> bytes:
    head = struct.pack("!h", 1) + command.column.encode() + b"\0"
    return encode(b"T", head + struct.pack("!ihihih", 0, 0, command.oid, _SIZES[command.oid], -1, 0))


def bound(rest: bytes) -> list[bytes | None]:
    (formats,) = struct.unpack_from("!h", rest)
    at = 2 + 2 * formats
    (count,) = struct.unpack_from("!h", rest, at)
    at += 2
    values: list[bytes | None] = []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", rest, at)
        at += 4
        values.append(None if size < 0 else rest[at : at + size])
        at += max(size, 0)
    (results,) = struct.unpack_from("!h", rest, at)
    if at + 2 + 2 * results != len(rest):
        raise SqlError("08P01", "invalid message format")
    return values
