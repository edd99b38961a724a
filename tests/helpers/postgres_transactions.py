"""Transactions of :mod:`helpers.postgres_model`: COMMIT makes rows visible, ROLLBACK takes back what can be."""

from __future__ import annotations

from helpers.postgres_sql import EXIT, Command, Portal, Session, SqlError, Store, Utility
from helpers.postgres_state import Belongings
from pgtrunk.wire import backend as server

__all__ = ["Transactions"]

_ABORTED = "current transaction is aborted, commands ignored until end of transaction block"


class Transactions:
    """Of one backend."""

    def __init__(self, store: Store, settings: dict[str, str]) -> None:
        self.store = store
        self.session = Session(settings, self._visible, held=store.held)
        self.portals: dict[str, Portal] = {}
        self.block = "I"
        """I: no transaction block, T: in one, E: in one that failed."""
        self._defaults = dict(settings)
        self._saved: dict[str, str] | None = None
        """The settings when the transaction began; None: no transaction, not even an implicit one."""
        self._before = Belongings()
        """What there was besides."""
        self._pending: list[tuple[str, int]] = []
        self._piped = False
        """Execute has run in a transaction that is nobody's block: whatever comes before Sync joins it."""

    def _say(self, data: bytes, *, flush: bool = False) -> None:
        raise NotImplementedError

    def _visible(self, table: str) -> list[int]:
        return self.store.tables.get(table, []) + [value for name, value in self._pending if name == table]

    def _start(self) -> None:
        if self._saved is None:
            self._saved = dict(self.session.settings)
            self._before = self.session.belongings.copy()

    def _commit(self) -> None:
        if self._saved is None:
            return
        if any(value < 0 for _, value in self._pending):
            raise SqlError("23514", "a deferred constraint does not hold")
        for table, value in self._pending:
            self.store.tables.setdefault(table, []).append(value)
        for name, before in self.session.local.items():
            self.session.settings[name] = before or ""
        self.session.local.clear()
        self.session.belongings.commit()
        self._end()

    def _roll_back(self, saved: dict[str, str]) -> None:
        settings = self.session.settings
        for name in settings:
            # Of one that only sessions have, the name stays.
            settings[name] = saved.get(name, "")
        self.session.local.clear()
        self.session.belongings.roll_back(self._before)

    def _abort(self) -> None:
        if self._saved is not None:
            self._roll_back(self._saved)
        self._pending, self.portals = [], {}
        if self.block == "I":
            self._end()
        else:
            self.block = "E"

    def _end(self) -> None:
        self.block, self._saved, self._pending, self.portals = "I", None, [], {}
        self._piped = False

    def _transaction(self, words: str) -> str:
        """BEGIN, COMMIT, ROLLBACK -> the tag."""
        if words == "begin":
            if self.block == "T":
                self._warn("25001", "there is already a transaction in progress")
            self.block = "T"
            return "BEGIN"
        if self.block == "I":
            self._warn("25P01", "there is no transaction in progress")
        failed = self.block == "E"
        if words == "commit" and not failed:
            self.block = "I"
            try:
                self._commit()
            except SqlError:
                self._abort()
                raise
            return "COMMIT"
        assert self._saved is not None
        self._roll_back(self._saved)
        self._end()
        return "ROLLBACK"

    def _warn(self, sqlstate: str, message: str) -> None:
        self._say(server.notice(sqlstate, message, severity="WARNING"), flush=True)

    def _check_aborted(self, command: Command | None) -> None:
        if self.block == "E" and not (isinstance(command, Utility) and command.words in EXIT):
            raise SqlError("25P02", _ABORTED)
