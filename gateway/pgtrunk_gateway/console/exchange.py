"""The protocol of a console session, without I/O: octets in, calls to be run out, their replies in, octets out.

Rule 1: :meth:`Exchange.advance` does one thing at a time: it handles one message, or sends the next rows of an answer.
Whoever drives it can stop between any two, so a client that does not read, or asks for much, costs a bounded amount.
Rule 2: where :attr:`Exchange.call` is set, nothing goes on before :meth:`done` or :meth:`failed`.
Rule 3: there are no transactions here. Portals end with Sync; prepared statements with their session.

Both protocols, simple and extended; results in text or binary. After an error in the extended protocol all is skipped
until Sync, as Postgres does.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import MessageReader, encode
from pgtrunk_gateway.console.calls import read
from pgtrunk_gateway.console.columns import row_description
from pgtrunk_gateway.console.named import Portal, Portals, Rows, Statements, shown
from pgtrunk_gateway.errors import GatewayError, InvalidCommand, NotSupported

if TYPE_CHECKING:
    from pgtrunk_gateway.console.calls import Call
    from pgtrunk_gateway.console.columns import Table
    from pgtrunk_gateway.console.reply import Reply

__all__ = ["Exchange"]

_MESSAGE: Final = 64 << 10
"""Octets of a message. No command is as long."""
_ROWS: Final = 50
"""Rows that one step sends."""
_NO_LIMIT: Final = 1 << 62

_BIND_COMPLETE: Final = encode(b"2")
_EMPTY_QUERY: Final = encode(b"I")
_NO_DATA: Final = encode(b"n")
_NO_PARAMETERS: Final = encode(b"t", b"\0\0")
_SUSPENDED: Final = encode(b"s")


class Exchange:
    """One console session's protocol, from behind its login; ``fleet``: see :func:`read`."""

    def __init__(self, *, fleet: bool = False) -> None:
        self._fleet = fleet
        self.call: Call | None = None
        """To be run now."""
        self.ended = False
        """The client has said goodbye."""
        self._reader = MessageReader(_MESSAGE)
        self._out: list[bytes] = []
        self._size = 0
        self._calls: deque[Call] = deque()
        """What is left of a simple query."""
        self._simple = False
        self._skipping = False
        self._statements = Statements()
        self._portals = Portals()
        self._portal: Portal | None = None
        """Whose call is run, or whose rows are sent; None in a simple query."""
        self._rows: Rows | None = None
        self._left = 0
        """Rows that Execute still asks for."""

    def feed(self, data: bytes) -> None:
        """What the client has sent."""
        self._reader.feed(data)

    @property
    def size(self) -> int:
        """Octets of output that nobody has taken yet."""
        return self._size

    def take(self) -> bytes:
        """The output."""
        out, self._out, self._size = b"".join(self._out), [], 0
        return out

    def advance(self) -> bool:
        """Does the next thing -> whether there was one. Raises :class:`ProtocolViolation` for what ends the session."""
        assert self.call is None
        if self._rows is not None:
            self._send_rows(self._rows)
        elif self._calls:
            self.call = self._calls.popleft()
        else:
            message = self._reader.next()
            if message is None:
                return False
            self._message(*message)
        return True

    def done(self, reply: Reply) -> None:
        """The call has been run."""
        self.call = None
        if reply.notice is not None:
            self._write(server.notice("00000", reply.notice, detail=reply.detail))
        for warning in reply.warnings:
            self._write(server.notice("01000", warning, severity="WARNING"))
        if reply.table is None:
            self._complete(reply.tag)
        elif self._portal is None:
            self._write(row_description(reply.table.columns))
            self._begin_rows(reply.table, reply.tag, (), _NO_LIMIT)
        else:
            self._begin_rows(reply.table, reply.tag, self._portal.formats, self._left)

    def failed(self, error: GatewayError) -> None:
        """The call, or a message, could not be done; the session goes on."""
        self.call = self._rows = self._portal = None
        self._calls.clear()
        self._write(server.error(error.sqlstate, error.message, detail=error.detail or "", hint=error.hint or ""))
        if self._simple:
            self._write(server.ready())
        else:
            self._skipping = True

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._size += len(data)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _complete(self, tag: str) -> None:
        self._write(server.command_complete(tag))
        if self._portal is not None:
            self._portal.spent = True
            self._portal = None
        elif not self._calls:
            self._write(server.ready())

    def _begin_rows(self, table: Table, tag: str, formats: Sequence[int], limit: int) -> None:
        self._rows = Rows(table.columns, iter(table.rows), formats, tag)
        self._left = limit

    def _send_rows(self, rows: Rows) -> None:
        taken = rows.take(min(self._left, _ROWS))
        self._left -= len(taken)
        for row in taken:
            self._write(row)
        if rows.next is None:
            self._rows = None
            self._complete(rows.tag)
        elif not self._left:
            assert self._portal is not None
            self._portal.rows, self._rows, self._portal = rows, None, None
            self._write(_SUSPENDED)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _message(self, kind: int, body: bytes) -> None:
        handler = self._HANDLERS.get(kind)
        if handler is None:
            raise ProtocolViolation(f"invalid frontend message type {kind}")
        if self._skipping and kind not in (client.SYNC, client.TERMINATE):
            return
        self._simple = kind in (client.QUERY, client.FUNCTION_CALL)
        try:
            handler(self, body)
        except GatewayError as error:
            self.failed(error)

    def _query(self, body: bytes) -> None:
        self._calls.extend(read(_sql(client.text(body)[0]), fleet=self._fleet))
        if not self._calls:
            self._write(_EMPTY_QUERY + server.ready())

    def _function_call(self, body: bytes) -> None:
        raise NotSupported("function calls are not supported by the console")

    def _parse(self, body: bytes) -> None:
        name, at = client.text(body)
        sql, _ = client.text(body, at)
        self._statements.check_free(name)
        calls = read(_sql(sql), fleet=self._fleet)
        if len(calls) > 1:
            raise InvalidCommand("cannot insert multiple commands into a prepared statement")
        self._statements.add(name, calls[0] if calls else None)
        self._write(server.PARSE_COMPLETE_MESSAGE)

    def _bind(self, body: bytes) -> None:
        portal, at = client.text(body)
        name, at = client.text(body, at)
        call = self._statements.find(name)
        formats = _formats(body, at, len(call.columns) if call is not None else 0)
        self._portals.check_free(portal)
        self._portals.add(portal, Portal(call, formats))
        self._write(_BIND_COMPLETE)

    def _describe(self, body: bytes) -> None:
        name, _ = client.text(body, 1)
        formats: Sequence[int] = ()
        if body[:1] == b"S":
            call = self._statements.find(name)
            self._write(_NO_PARAMETERS)
        else:
            portal = self._portals.find(name)
            call, formats = portal.call, portal.formats
        if call is None or not call.columns:
            self._write(_NO_DATA)
        else:
            self._write(row_description(call.columns, formats))

    def _execute(self, body: bytes) -> None:
        name, at = client.text(body)
        limit = _number(body, at, "!i")
        portal = self._portals.find(name)
        self._left = limit if limit > 0 else _NO_LIMIT
        if portal.call is None:
            self._write(_EMPTY_QUERY)
        elif portal.rows is not None:
            self._portal, self._rows, portal.rows = portal, portal.rows, None
        elif portal.spent:
            raise GatewayError(f'portal "{shown(name)}" cannot be run', sqlstate="55000")
        else:
            self._portal, self.call = portal, portal.call

    def _close(self, body: bytes) -> None:
        name, _ = client.text(body, 1)
        (self._statements if body[:1] == b"S" else self._portals).close(name)
        self._write(server.CLOSE_COMPLETE_MESSAGE)

    def _sync(self, body: bytes) -> None:
        self._skipping = False
        self._portals.clear()
        self._write(server.ready())

    def _terminate(self, body: bytes) -> None:
        self.ended = True

    def _ignore(self, body: bytes) -> None:
        """Flush, since nothing is held back; and what belongs to a COPY, as Postgres does outside one."""

    _HANDLERS: ClassVar[Mapping[int, Callable[..., None]]] = {
        client.QUERY: _query,
        client.FUNCTION_CALL: _function_call,
        client.PARSE: _parse,
        client.BIND: _bind,
        client.DESCRIBE: _describe,
        client.EXECUTE: _execute,
        client.CLOSE: _close,
        client.SYNC: _sync,
        client.TERMINATE: _terminate,
        client.FLUSH: _ignore,
        client.COPY_DATA: _ignore,
        client.COPY_DONE: _ignore,
        client.COPY_FAIL: _ignore,
    }


def _sql(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise GatewayError("invalid byte sequence for encoding UTF8", sqlstate="22021") from None


def _number(body: bytes, at: int, code: str) -> int:
    if len(body) < at + struct.calcsize(code):
        raise ProtocolViolation("insufficient data left in message")
    number: int = struct.unpack_from(code, body, at)[0]
    return number


def _formats(body: bytes, at: int, columns: int) -> tuple[int, ...]:
    """The rest of a Bind behind its names -> a result format per column, or none: text."""
    at += 2 + 2 * _number(body, at, "!H")
    if parameters := _number(body, at, "!H"):
        raise GatewayError(
            f"bind message supplies {parameters} parameters, but prepared statement requires 0", sqlstate="08P01"
        )
    count = _number(body, at + 2, "!H")
    codes = [_number(body, at + 4 + 2 * each, "!H") for each in range(count)]
    if any(code > 1 for code in codes):
        raise GatewayError("unsupported format code", sqlstate="22023")
    if count > 1 and count != columns:
        raise GatewayError(f"bind message has {count} result formats but query has {columns} columns", sqlstate="08P01")
    return tuple(codes * columns if count == 1 else codes) if any(codes) else ()
