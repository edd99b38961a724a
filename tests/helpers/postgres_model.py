"""A small, honest model of Postgres's message loop: bytes in, bytes out.

What ``PostgresMain``, ``exec_*_message`` and ``CopyGetData`` do, in their order: prepared statements, portals, implicit
and explicit transactions, skipping to Sync, COPY, settings that are reported before ReadyForQuery. Several models on
one :class:`Store` are the backends of one database. ``tests/session/test_against_postgres.py`` holds it against a
server.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import ClassVar

from helpers.postgres_layout import check_layout
from helpers.postgres_sql import (
    DEFAULTS,
    IDENTITY,
    OTHERS,
    TRANSACTION,
    Command,
    Copy,
    Portal,
    Prepared,
    Rows,
    SqlError,
    Store,
    Utility,
    assign,
    bound,
    literal,
    parse_all,
    row_description,
)
from helpers.postgres_state import BELONGS, is_custom
from helpers.postgres_transactions import Transactions
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEAD, HEADER_SIZE, encode


class PostgresModel(Transactions):
    """One backend, after its login."""

    def __init__(self, store: Store | None = None, settings: dict[str, str] | None = None, pid: int = 1) -> None:
        super().__init__(store if store is not None else Store(), {**DEFAULTS, **OTHERS, **(settings or {})})
        self.pid = pid
        self.closed = False
        self.received: list[str] = []
        """The type octets that came, for tests that count."""
        self.statements: dict[str, Prepared] = {}
        self.running: Callable[[], None] | None = None
        """How a sleep goes on when it is over."""
        self._reported = self.reported
        self._extended = False
        self._skipping = False
        self._copy: tuple[str, list[int], bool] | None = None
        self._text = ""
        self._buffer = b""
        self._out: list[bytes] = []
        self._flushed = 0

    @property
    def reported(self) -> dict[str, str]:
        """What it reports, as it is now."""
        settings = self.session.settings
        return {name: value for name, value in settings.items() if name not in OTHERS and not is_custom(name)}

    @property
    def copying(self) -> bool:
        """Whether it waits for data."""
        return self._copy is not None

    @property
    def clean(self) -> bool:
        """Whether another session would find it as new but for its statements and settings."""
        busy = self._skipping or self._copy or self.running or self._buffer or self.portals
        return self.block == "I" and self._saved is None and not busy

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Takes what the client sent -> what it answers at once."""
        self._buffer += data
        while not self.running and not self.closed and len(self._buffer) >= HEADER_SIZE:
            kind, length = HEAD(self._buffer, 0)
            if len(self._buffer) <= length:
                break
            body, self._buffer = self._buffer[HEADER_SIZE : length + 1], self._buffer[length + 1 :]
            self.received.append(chr(kind))
            self._message(chr(kind), body)
        return self._take()

    def wake(self) -> bytes:
        """The sleep is over."""
        self._resume(None)
        return self._take() + self.feed(b"")

    def cancel(self) -> bytes:
        """A cancel request came: what runs fails, what does not run takes no notice."""
        if self.running is None:
            return b""
        self._resume(SqlError("57014", "canceling statement due to user request"))
        return self._take() + self.feed(b"")

    def _resume(self, error: SqlError | None) -> None:
        run, self.running = self.running, None
        assert run is not None

        def go_on() -> None:
            if error is not None:
                raise error
            run()

        self._guarded(go_on)

    def _take(self) -> bytes:
        out, self._out = self._out[: self._flushed], self._out[self._flushed :]
        self._flushed = 0
        return b"".join(out)

    def _say(self, data: bytes, *, flush: bool = False) -> None:
        # Like Postgres, it keeps its answers until something flushes them.
        self._out.append(data)
        if flush:
            self._flush()

    def _flush(self, _: bytes = b"") -> None:
        self._flushed = len(self._out)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _message(self, kind: str, body: bytes) -> None:
        if kind == "X":
            self.closed = True
        elif self._copy is not None:
            self._guarded(lambda: self._in_copy(kind, body))
        else:
            self._extended = kind in "BCDEHP"
            if kind == "S":
                self._skipping = False
            if not self._skipping and kind not in "cdf":
                self._guarded(lambda: self._HANDLERS[kind](self, check_layout(kind, body)))

    def _guarded(self, run: Callable[[], object]) -> None:
        try:
            run()
        except SqlError as error:
            self._fail(error)

    def _fail(self, error: SqlError) -> None:
        self._say(server.error(error.sqlstate, error.message, severity="FATAL" if error.fatal else "ERROR"), flush=True)
        if error.fatal:
            self.closed = True
            return
        self._copy = None
        self._abort()
        if self._extended:
            self._skipping = True
        else:
            self._ready()

    def _ready(self) -> None:
        for name, value in self.reported.items():
            if self._reported[name] != value:
                self._reported[name] = value
                self._say(server.parameter_status(name, value))
        inside = self._piped and self.block == "I"
        self._say(server.ready(b"T" if inside else self.block.encode()), flush=True)

    # -- simple protocol -----------------------------------------------------------------------------------------------

    def _query(self, body: bytes) -> None:
        self.statements.pop("", None)
        self.portals.pop("", None)
        self._start()
        commands = parse_all(body[:-1].decode())
        if not commands:
            self._say(encode(b"I"))
        # One command alone joins what was piped before it; several are a transaction, which ends with the last.
        self._piped = self._piped and len(commands) < 2
        self._run_next(commands)

    def _run_next(self, commands: list[Command]) -> None:
        while commands:
            command = commands.pop(0)
            self._check_aborted(command)
            self._start()
            if isinstance(command, Rows):
                if command.plan_error is not None:
                    raise command.plan_error
                self._say(row_description(command))
                if command.sleeps:
                    self.running = lambda command=command: self._after_sleep(command, commands)
                    return
                self._select(Portal(command, []), 0)
            elif self._run(command):
                self._after_copy = lambda: self._run_next(commands)
                return
        if self.block == "I" and not self._piped:
            self._commit()
        self._ready()

    def _after_sleep(self, command: Rows, commands: list[Command]) -> None:
        self._select(Portal(command, []), 0)
        self._run_next(commands)

    def _run(self, command: Command) -> bool:
        """A command without rows -> whether it waits for COPY data."""
        if isinstance(command, Copy):
            return self._start_copy(command)
        assert isinstance(command, Utility)
        words, arguments = command.words, command.arguments
        tag = command.tag
        if words in TRANSACTION:
            tag = self._transaction(words)
        elif words == "insert":
            self._pending.append((arguments[0], int(arguments[1])))
        elif words in ("set", "set local"):
            assign(self.session, arguments[0], literal(arguments[1]), local=words == "set local")
        elif words in BELONGS:
            BELONGS[words](self.session.belongings, *arguments)
        elif words == "notice":
            self._say(server.notice("00000", arguments[0]), flush=True)
        else:
            self._drop(words, arguments)
        self._say(server.command_complete(tag))
        return False

    def _drop(self, words: str, arguments: tuple[str, ...]) -> None:
        if words == "deallocate":
            if self.statements.pop(arguments[0], None) is None:
                raise SqlError("26000", f'prepared statement "{arguments[0]}" does not exist')
            return
        if words == "reset":
            self._reset(arguments or tuple(self.session.settings.keys() - IDENTITY))
            return
        if words == "discard all":
            if self.block != "I" or self._pending:
                raise SqlError("25001", "DISCARD ALL cannot run inside a transaction block")
            self._reset(tuple(self.session.settings))
            assert self._saved is not None
            self._saved.update(self.session.settings)
            self._before = self.session.belongings.discard(self.store.held)
        self.statements = {name: kept for name, kept in self.statements.items() if not name}

    def _reset(self, names: tuple[str, ...]) -> None:
        for name in (*names, "role") if "session_authorization" in names else names:
            self.session.settings[name] = self._defaults.get(name, "")
            self.session.local.pop(name, None)
            self.session.belongings.made.discard(name)

    def _select(self, portal: Portal, limit: int) -> None:
        command = portal.command
        assert isinstance(command, Rows)
        if portal.rows is None:
            portal.rows = list(command.values(portal.values, self.session))
        rows = portal.rows[:limit] if limit else portal.rows
        portal.rows = portal.rows[len(rows) :]
        for value in rows:
            self._say(server.data_row(list(value) if isinstance(value, tuple) else [value]))
        if limit and len(rows) == limit:
            self._say(encode(b"s"))
        else:
            self._say(server.command_complete("SHOW" if command.tag == "SHOW" else f"SELECT {len(rows)}"))

    # -- extended protocol ---------------------------------------------------------------------------------------------

    def _parse(self, body: bytes) -> None:
        name, sql, rest = body.split(b"\0", 2)
        (count,) = struct.unpack_from("!h", rest)
        if not name:
            self.statements.pop("", None)
        self._start()
        commands = parse_all(sql.decode())
        if len(commands) > 1:
            raise SqlError("42601", "cannot insert multiple commands into a prepared statement")
        command = commands[0] if commands else None
        self._check_aborted(command) if command else None
        if name and name.decode() in self.statements:
            raise SqlError("42P05", f'prepared statement "{name.decode()}" already exists')
        types = command.types if command else ()
        self.statements[name.decode()] = Prepared(command, types or struct.unpack_from(f"!{count}I", rest, 2), sql)
        self._say(encode(b"1"))

    def _statement(self, name: str) -> Prepared:
        found = self.statements.get(name)
        if found is None:
            raise SqlError(
                "26000",
                f'prepared statement "{name}" does not exist' if name else "unnamed prepared statement does not exist",
            )
        return found

    def _bind(self, body: bytes) -> None:
        portal, statement, rest = body.split(b"\0", 2)
        name = portal.decode()
        prepared = self._statement(statement.decode())
        self._start()
        values = bound(rest)
        if len(values) != len(prepared.types):
            raise SqlError(
                "08P01",
                f"bind message supplies {len(values)} parameters, but prepared statement "
                f'"{statement.decode()}" requires {len(prepared.types)}',
            )
        self._check_aborted(prepared.command)
        if name and name in self.portals:
            raise SqlError("42P03", f'cursor "{name}" already exists')
        self.portals.pop(name, None)
        if isinstance(prepared.command, Rows) and prepared.command.plan_error is not None:
            raise prepared.command.plan_error
        self.portals[name] = Portal(prepared.command, values)
        self._say(encode(b"2"))

    def _portal(self, name: str) -> Portal:
        if name not in self.portals:
            raise SqlError("34000", f'portal "{name}" does not exist')
        return self.portals[name]

    def _describe(self, body: bytes) -> None:
        what, name = chr(body[0]), body[1:-1].decode()
        if what == "S":
            prepared = self._statement(name)
            command = prepared.command
        else:
            command = self._portal(name).command
        self._start()
        if isinstance(command, Rows):
            self._check_aborted(command)
        if what == "S":
            self._say(encode(b"t", struct.pack(f"!h{len(prepared.types)}I", len(prepared.types), *prepared.types)))
        self._say(row_description(command) if isinstance(command, Rows) else encode(b"n"))

    def _execute(self, body: bytes) -> None:
        name, rest = body.split(b"\0", 1)
        portal = self._portal(name.decode())
        if portal.command is None:
            self._say(encode(b"I"))
            return
        self._start()
        self._check_aborted(portal.command)
        self._piped = True
        if isinstance(portal.command, Rows):
            (limit,) = struct.unpack("!i", rest)
            if portal.command.sleeps and portal.rows is None:
                self.running = lambda: self._select(portal, limit)
            else:
                self._select(portal, limit)
            return
        if portal.done:
            raise SqlError("55000", f'portal "{name.decode()}" cannot be run')
        portal.done, self._after_copy = True, lambda: None
        self._run(portal.command)
        if isinstance(portal.command, Utility) and portal.command.words == "discard all":
            self._commit()

    def _close(self, body: bytes) -> None:
        kept: dict[str, Prepared] | dict[str, Portal] = self.statements if body[:1] == b"S" else self.portals
        kept.pop(body[1:-1].decode(), None)
        self._say(encode(b"3"))

    def _sync(self, _: bytes) -> None:
        if self.block == "I":
            self._commit()
        self._ready()

    def _function(self, body: bytes) -> None:
        (oid,) = struct.unpack_from("!I", body)
        self._start()
        self._check_aborted(None)
        raise SqlError("42883", f"function with OID {oid} does not exist")

    # -- COPY ----------------------------------------------------------------------------------------------------------

    _after_copy: Callable[[], None]

    def _start_copy(self, command: Copy) -> bool:
        if command.inwards:
            self._copy, self._text = (command.table, [], self._extended), ""
            self._say(encode(b"G", struct.pack("!bhh", 0, 1, 0)), flush=True)
            return True
        values = self._visible(command.table)
        self._say(encode(b"H", struct.pack("!bhh", 0, 1, 0)))
        for value in values:
            self._say(client.copy_data(b"%d\n" % value))
        self._say(encode(b"c") + server.command_complete(f"COPY {len(values)}"))
        return False

    def _in_copy(self, kind: str, body: bytes) -> None:
        assert self._copy is not None
        table, values, self._extended = self._copy
        if kind == "d":
            *lines, self._text = (self._text + body.decode()).split("\n")
            for text in lines:
                if not text.lstrip("-").isdigit():
                    raise SqlError("22P02", f'invalid input syntax for type integer: "{text}"')
                values.append(int(text))
        elif kind == "c":
            self._copy = None
            self._pending += [(table, value) for value in values]
            self._say(server.command_complete(f"COPY {len(values)}"))
            self._after_copy()
        elif kind == "f":
            raise SqlError("57014", f"COPY from stdin failed: {body[:-1].decode()}")
        elif kind not in "HS":
            # The server has read the type octet and nothing more: it does not know where the next message begins.
            self._say(server.error("08P01", f"unexpected message type 0x{ord(kind):02X} during COPY from stdin"))
            raise SqlError("08P01", "terminating connection because protocol synchronization was lost", fatal=True)

    _HANDLERS: ClassVar[dict[str, Callable[[PostgresModel, bytes], None]]] = {
        "Q": _query,
        "F": _function,
        "P": _parse,
        "B": _bind,
        "D": _describe,
        "E": _execute,
        "C": _close,
        "S": _sync,
        "H": _flush,
    }
