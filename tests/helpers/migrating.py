"""Models of Postgres whose one table changes the type of its column, as a migration does; and who keeps count of it.

What a backend has analysed gives the columns that it gave then, or fails: "cached plan must not change result type".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from helpers.postgres_model import PostgresModel
from helpers.postgres_sql import INT4, INT8, TEXT, Prepared, Rows, Session, SqlError, Store
from helpers.session_pair import Link, SessionPair
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import encode

__all__ = ["INSERT", "OIDS", "SELECT", "STALE", "Migrating"]

SELECT: Final = b"select n from moving"
INSERT: Final = b"insert into moving default values returning n"
OIDS: Final = (INT4, INT8, TEXT)
"""Of the column's type, one after the other."""
STALE: Final = "ErrorResponse ERROR 0A000 cached plan must not change result type"


class _StaleError(SqlError):
    def __init__(self) -> None:
        super().__init__("0A000", "cached plan must not change result type")


@dataclass(slots=True)
class _Moving(Store):
    oid: int = INT4
    inserted: int = 0


class _Model(PostgresModel):
    """Rows have the type of the column that they were read from as their value."""

    store: _Moving

    def _parse(self, body: bytes) -> None:
        name, sql, types = body.split(b"\0", 2)
        if sql not in (SELECT, INSERT):
            super()._parse(body)
            return
        super()._parse(b"\0".join((name, b"select 1", types)))
        prepared = self.statements[name.decode()]
        prepared.command, prepared.text = self._command(sql), sql

    def _command(self, sql: bytes) -> Rows:
        def values(_: list[bytes | None], session: Session) -> list[bytes]:
            self.store.inserted += sql == INSERT
            return [b"%d" % self.store.oid]

        return Rows("n", self.store.oid, values)

    def _revalidate(self, prepared: Prepared) -> None:
        command = prepared.command
        if prepared.text in (SELECT, INSERT) and isinstance(command, Rows) and command.oid != self.store.oid:
            raise _StaleError

    def _bind(self, body: bytes) -> None:
        portal, statement, _ = body.split(b"\0", 2)
        super()._bind(body)
        try:
            self._revalidate(self._statement(statement.decode()))
        except _StaleError:
            del self.portals[portal.decode()]
            del self._out[-1]
            raise

    def _describe(self, body: bytes) -> None:
        super()._describe(body)
        if body[:1] == b"S":
            try:
                self._revalidate(self._statement(body[1:-1].decode()))
            except _StaleError:
                # ParameterDescription has been said by then.
                del self._out[-1]
                raise

    def _fail(self, error: SqlError) -> None:
        super()._fail(error)
        if isinstance(error, _StaleError):
            plain = server.error(error.sqlstate, error.message)
            told = encode(b"E", plain[5:-1] + b"RRevalidateCachedQuery\0\0")
            self._out = [told if each == plain else each for each in self._out]

    _HANDLERS: ClassVar[dict[str, Any]] = {**PostgresModel._HANDLERS, "P": _parse, "B": _bind, "D": _describe}


class Migrating(SessionPair):
    """A pair with such backends."""

    def open_backend(self) -> Link:
        if not isinstance(self.store, _Moving):
            self.store = _Moving()
        model = _Model(self.store, pid=len(self.links) + 1)
        link = Link(self.pool, model, self.context.config.max_prepared_statements)
        self.links.append(link)
        self.pool.give(link.backend)
        return link

    @property
    def column(self) -> int:
        """The type of the column."""
        assert isinstance(self.store, _Moving)
        return self.store.oid

    @property
    def inserted(self) -> int:
        """How many rows have been put in, or at least tried to."""
        assert isinstance(self.store, _Moving)
        return self.store.inserted

    def migrate(self, oid: int) -> None:
        """By somebody whom the gateway does not see."""
        assert isinstance(self.store, _Moving)
        self.store.oid = oid
