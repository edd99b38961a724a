"""The SQL that :mod:`helpers.postgres_model` knows: enough to show every reply, a few words of each kind.

Texts mean in Postgres what they mean here, so that the model can be held against a server.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from helpers.postgres_state import Belongings, is_custom, left
from pgtrunk.wire.framing import encode

INT4, INT8, TEXT, VOID, BOOL = 23, 20, 25, 2278, 16


class SqlError(Exception):
    """An ErrorResponse. ``fatal``: the connection ends with it."""

    def __init__(self, sqlstate: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.fatal = fatal


@dataclass(frozen=True, slots=True)
class Rows:
    """A command that gives rows. ``values``: of the parameters and the session -> the rows; tuples, where there are
    ``more`` columns than one."""

    column: str
    oid: int
    values: Callable[[list[bytes | None], Session], Sequence[Row]]
    types: tuple[int, ...] = ()
    tag: str = "SELECT"
    plan_error: SqlError | None = None
    """Raised when it is planned: at Bind, in the extended protocol."""
    sleeps: bool = False
    more: tuple[tuple[str, int], ...] = ()


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
Row: TypeAlias = bytes | tuple[bytes | None, ...] | None
EXIT = frozenset({"commit", "rollback"})
TRANSACTION = EXIT | {"begin"}


@dataclass(slots=True)
class Session:
    """What the words of a session can read and change: its settings, the rows that it sees, what belongs to it."""

    settings: dict[str, str] = field(default_factory=dict)
    rows: Callable[[str], list[int]] = lambda table: []
    belongings: Belongings = field(default_factory=Belongings)
    local: dict[str, str | None] = field(default_factory=dict)
    """What settings were before they were set for the transaction."""
    held: dict[str, Belongings] = field(default_factory=dict)
    """Whose each lock is."""
    deaf: int = 0
    """How many inquiries are cancelled from now on."""


@dataclass(slots=True)
class Store:
    """The committed rows of each table, and who has a lock."""

    tables: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, Belongings] = field(default_factory=dict)


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
    rows: list[Row] | None = None
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
OTHERS = {
    "lock_timeout": "0",
    "statement_timeout": "0",
    "temp_tablespaces": "",
    "role": "none",
    "session_authorization": "user",
}
"""Some of those that are not."""
IDENTITY = frozenset({"role", "session_authorization"})
"""Those that RESET ALL leaves."""
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
        spelt = name.replace('"', "").lower()
        return spelt if is_custom(spelt) else _NAMES[spelt]
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
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        if setting(name) not in session.settings:
            raise SqlError("42704", f'unrecognized configuration parameter "{name}"')
        return [session.settings[setting(name)].encode()]

    return Rows(setting(name), TEXT, run, tag="SHOW")


def _current_setting(name: str) -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        value = session.settings.get(setting(name))
        return [None if value is None else value.encode()]

    return Rows("current_setting", TEXT, run)


def _fails(_: list[bytes | None], __: Session) -> list[Row]:
    raise SqlError("22012", "division by zero")


def assign(session: Session, name: str, value: str, *, local: bool = False) -> str:
    """Gives a setting a value -> what that is then."""
    name = setting(name)
    if local:
        session.local.setdefault(name, session.settings.get(name))
    else:
        session.local.pop(name, None)
        session.belongings.made.add(name)
    session.settings[name] = canonical(name, value)
    if name == "session_authorization":
        session.settings["role"] = "none"
    return session.settings[name]


def _set_config(name: str, value: str, local: str) -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        return [assign(session, name, literal(value), local=local == "true").encode()]

    return Rows("set_config", TEXT, run)


def _bound_config(local: str) -> Rows:
    def run(values: list[bytes | None], session: Session) -> list[Row]:
        name, value = ((given or b"").decode() for given in values)
        return [assign(session, name, value, local=local == "true").encode()]

    return Rows("set_config", TEXT, run, (TEXT, TEXT))


def _inquiry(sql: str) -> Rows:
    def run(_: list[bytes | None], session: Session) -> Sequence[Row]:
        if session.deaf:
            session.deaf -= 1
            raise SqlError("57014", "canceling statement due to statement timeout")
        return left(sql, session.settings, session.belongings)

    return Rows("n", TEXT, run, more=(("current_setting", TEXT), ("coalesce", BOOL)))


def _timeout() -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        return [(b"statement_timeout", session.settings["statement_timeout"].encode(), b"t")]

    return Rows("?column?", TEXT, run, more=(("current_setting", TEXT), ("bool", BOOL)))


def _no_timeout() -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        return [(b"", assign(session, "statement_timeout", "0", local=True).encode(), b"f")]

    return Rows("?column?", TEXT, run, more=(("set_config", TEXT), ("bool", BOOL)))


def _lock(tries: str | None, name: str) -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        free = session.held.setdefault(name, session.belongings) is session.belongings
        if free:
            session.belongings.locks.append(name)
        return [(b"t" if free else b"f") if tries else b""]

    return Rows("pg_try_advisory_lock", BOOL, run) if tries else Rows("pg_advisory_lock", VOID, run)


def _unlock(name: str) -> Rows:
    def run(_: list[bytes | None], session: Session) -> list[Row]:
        locks = session.belongings.locks
        had = name in locks
        if had:
            locks.remove(name)
            if name not in locks:
                del session.held[name]
        return [b"t" if had else b"f"]

    return Rows("pg_advisory_unlock", BOOL, run)


def _belongs(words: str, tag: str) -> Callable[..., Utility]:
    return lambda *arguments: Utility(words, arguments, tag)


def _set(local: str | None, name: str, value: str) -> Utility:
    if value.lower() == "default":
        return Utility("reset", (setting(name),), "SET")
    return Utility("set local" if local and local.lower() == "local " else "set", (name, value), "SET")


_LITERAL = r"(E?'(?:[^']|'')*'|\w+)"
_NAME = r'((?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))*)'
_CONFIG = r"(?:pg_catalog\.)?set_config"
_GRAMMAR: list[tuple[str, Callable[..., Command]]] = [
    (r"select (\d+)", lambda n: _constant("?column?", INT4, n)),
    (r"select '([^']*)'", lambda text: _constant("?column?", TEXT, text)),
    (r"select \$1::(int|text)", _parameter),
    (r"select generate_series\(1, ?(\d+)\)", _series),
    (r"select count\(\*\) from (\w+)", _count),
    (r"select 1/0", lambda: Rows("?column?", INT4, _fails, plan_error=SqlError("22012", "division by zero"))),
    (r"select 1/\(random\(\)\*0\)::int", lambda: Rows("?column?", INT4, _fails)),
    (r"select pg_sleep\([\d.]+\)", lambda: Rows("pg_sleep", VOID, lambda _, __: [b""], sleeps=True)),
    (rf"select {_CONFIG}\('([\w.]+)', ?{_LITERAL}, ?(true|false)\)", _set_config),
    (rf"select {_CONFIG}\(\$1, ?\$2, ?(true|false)\)", _bound_config),
    (r"select '',pg_catalog\.set_config\('statement_timeout','0',true\),false", _no_timeout),
    (r"select 'statement_timeout',pg_catalog\.current_setting\('statement_timeout'\),true", _timeout),
    (r"(select (?:n,pg_catalog\.current_setting|'\d+',null,exists).*)", _inquiry),
    (r"select pg_(try_)?advisory_lock\((\d+)\)", _lock),
    (r"select pg_advisory_unlock\((\d+)\)", _unlock),
    (r"show ([\w.]+)", _show),
    (r"select current_setting\('(\S+)', true\)", _current_setting),
    (r"insert into (\w+) values \((-?\d+)\)", lambda *a: Utility("insert", a, "INSERT 0 1")),
    (r"begin|start transaction", lambda: Utility("begin", (), "BEGIN")),
    (r"commit", lambda: Utility("commit", (), "COMMIT")),
    (r"rollback", lambda: Utility("rollback", (), "ROLLBACK")),
    (r"reset all", lambda: Utility("reset", (), "RESET")),
    (r"reset session authorization", lambda: Utility("reset", ("session_authorization",), "RESET")),
    (rf"reset {_NAME}", lambda name: Utility("reset", (setting(name),), "RESET")),
    (rf"set session authorization {_NAME}", lambda name: _set(None, "session_authorization", name)),
    (rf"set (local |session )?role {_NAME}", lambda local, name: _set(local, "role", name)),
    (rf"set (local |session )?{_NAME} ?(?:=|to) ?{_LITERAL}", _set),
    (r"discard all", lambda: Utility("discard all", (), "DISCARD ALL")),
    (r"deallocate all", lambda: Utility("deallocate all", (), "DEALLOCATE ALL")),
    (r'deallocate "?([^"]+)"?', lambda *a: Utility("deallocate", a, "DEALLOCATE")),
    (r"listen (\w+)", _belongs("listen", "LISTEN")),
    (r"unlisten (\w+|\*)", _belongs("unlisten", "UNLISTEN")),
    (r"create temp table (\w+) \(a int\)( on commit drop)?", _belongs("create temp", "CREATE TABLE")),
    (r"drop table (\w+)", _belongs("drop", "DROP TABLE")),
    (r"declare (\w+) cursor with hold for select \d+", _belongs("declare", "DECLARE CURSOR")),
    (r"close (\w+)", _belongs("close", "CLOSE CURSOR")),
    (r"load '(\w+)'", _belongs("load", "LOAD")),
    (r"do \$\$ ?begin raise notice '(\w+)'; end ?\$\$", lambda *a: Utility("notice", a, "DO")),
    (r"copy (\w+) from stdin", lambda table: Copy(True, table)),
    (r"copy (\w+) to stdout", lambda table: Copy(False, table)),
]


# -- messages --------------------------------------------------------------------------------------------------------

_SIZES = {INT4: 4, INT8: 8, TEXT: -1, VOID: 4, BOOL: 1}


def row_description(command: Rows) -> bytes:
    columns = [(command.column, command.oid), *command.more]
    head = struct.pack("!h", len(columns))
    for name, oid in columns:
        head += name.encode() + b"\0" + struct.pack("!ihihih", 0, 0, oid, _SIZES[oid], -1, 0)
    return encode(b"T", head)


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
