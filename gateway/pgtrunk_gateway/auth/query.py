"""auth_query: what is sent to Postgres for one user, and what its answer says. Sans-IO.

PgBouncer's contract: the query is sent by the extended protocol with the user's name as $1, a text of unknown type; its
result has exactly two columns, name and secret. No row: no such user. NULL for the secret: nobody gets in as this user.
The name in the result is who the client is from then on. Of several rows the last one counts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.auth.secret import Secret, parse_secret
from pgtrunk_gateway.errors import ConfigError, LookupFailed

__all__ = ["Answer", "Found", "request"]

_COLUMNS = 2
_NO_NAME = "22021"
"""character_not_in_repertoire: no user of this database can have such a name."""
_QUIET = frozenset(
    {server.PARSE_COMPLETE, server.BIND_COMPLETE, server.COMMAND_COMPLETE, server.EMPTY_QUERY, server.NO_DATA}
)
_ANY_TIME = frozenset({server.NOTICE, server.PARAMETER_STATUS, server.NOTIFICATION})


@dataclass(frozen=True, slots=True)
class Found:
    """A user, and what lets it in."""

    user: str
    secrets: tuple[Secret, ...] = field(repr=False)
    """None of them: nothing does."""


def request(query: str, user: str) -> bytes:
    """What asks for ``user``."""
    return (
        client.parse(b"", _octets(query))
        + client.bind(b"", b"", [_octets(user)])
        + client.describe_portal(b"")
        + client.execute()
        + client.SYNC_MESSAGE
    )


class Answer:
    """The answer to one :func:`request`, message by message."""

    __slots__ = ("_described", "_error", "_found", "done")

    def __init__(self) -> None:
        self.done = False
        """ReadyForQuery has come: then :meth:`result`."""
        self._found: Found | None = None
        self._described = False
        self._error: LookupFailed | None = None

    def feed(self, kind: int, body: bytes) -> None:
        """One message. Raises :class:`ProtocolViolation` for one that does not belong here."""
        if kind == server.READY:
            self.done = True
        elif kind == server.ERROR:
            self._refuse(server.parse_error(body))
        elif kind == server.ROW_DESCRIPTION:
            self._described = True
            self._count(_number(body))
        elif kind == server.DATA_ROW:
            self._row(body)
        elif kind not in _QUIET and kind not in _ANY_TIME:
            raise ProtocolViolation(f"unexpected message {chr(kind)!r} in the answer to auth_query")

    def result(self) -> Found | None:
        """The user; None: there is none. Raises :class:`LookupFailed`."""
        if not self._described:
            self._count(0)
        if self._error is not None:
            raise self._error
        return self._found

    def _refuse(self, fields: server.ErrorFields) -> None:
        if fields.sqlstate == _NO_NAME:
            self._described = True
            return
        reason = f"{fields.severity} {fields.message} ({fields.sqlstate})"
        self._error = LookupFailed(log=f"error response from auth_query: {reason}")

    def _count(self, columns: int) -> None:
        if columns != _COLUMNS and self._error is None:
            self._error = LookupFailed(log=f"expected 2 columns from auth_query, not {columns}")

    def _row(self, body: bytes) -> None:
        values = server.parse_data_row(body)
        if len(values) != _COLUMNS or self._error is not None:
            self._count(len(values))
            return
        name, secret = values
        if name is None:
            self._error = LookupFailed(log="auth_query response contained null user name")
            return
        user = name.decode("utf-8", "surrogateescape")
        try:
            secrets = () if secret is None else (parse_secret(secret.decode("utf-8", "surrogateescape")),)
        except ConfigError:
            # As Postgres would have it: what it cannot read lets nobody in. To the client it is like a wrong password.
            secrets = ()
        self._found = Found(user, secrets)


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _number(body: bytes) -> int:
    if len(body) < 2:
        raise ProtocolViolation("a message in the answer to auth_query is too short")
    return int(struct.unpack_from("!h", body)[0])
