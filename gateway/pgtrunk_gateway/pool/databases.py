"""What the console has said about databases: PAUSE and DISABLE outlive pools, and come before there are any."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config

__all__ = ["DatabaseState", "Databases"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DatabaseState:
    """One database, as clients name it."""

    auto: bool = False
    """Whether it is made from the entry "*"."""
    paused: bool = False
    """Its sessions get no backends (PAUSE db, KILL db)."""
    disabled: bool = False
    """It takes no new sessions (DISABLE db)."""


class Databases(dict[str, DatabaseState]):
    """One for each entry of [databases], and for each name that "*" has served."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> list[str]:
        """Other entries from now on -> the names that nothing leads to any more; they are forgotten."""
        for name in config.databases:
            self.setdefault(name, DatabaseState()).auto = False
        for name in self:
            self[name].auto = name not in config.databases
        gone = [name for name in self if config.database(name) is None]
        for name in gone:
            del self[name]
        return gone

    def find(self, config: Config, name: str) -> DatabaseState | None:
        """The state of a database, made where "*" serves it; None: there is no such database."""
        state = self.get(name)
        if state is None and config.database(name) is not None:
            state = self[name] = DatabaseState(auto=name not in config.databases)
            if state.auto:
                log.info("registered new auto-database: db=%s", name)
        return state
