"""What a worker does when the supervisor says that the whole fleet does it; see :mod:`~pgtrunk_gateway.fleet.face`."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.config.checks import READABLE, TLS_FILES
from pgtrunk_gateway.errors import ConfigError, GatewayError, InternalError
from pgtrunk_gateway.fleet.standing import Standing, reader

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.gateway import Gateway
    from pgtrunk_gateway.reloading import Prepared

__all__ = ["Deeds"]

log = logging.getLogger(__name__)

_JOINS: Final = 60.0
"""Seconds in which the supervisor must have let a worker in; a reload may be under way."""


class Deeds:
    """Of ``gateway``, worker number ``index``. ``bus`` leads to the supervisor, ``standing`` is what it has said."""

    def __init__(self, gateway: Gateway, bus: Bus, index: int, standing: Standing) -> None:
        self._gateway = gateway
        self._bus = bus
        self._index = index
        self._standing = standing
        self._prepared: tuple[int, Prepared] | None = None
        """What waits for the second phase, and its number."""
        _hold(gateway, Standing(), standing)
        bus.on("prepare", self._prepare)
        bus.on("commit", self._commit)
        bus.on("discard", lambda _: self._discard())
        bus.on("act", self._act)
        bus.on("settle", self._settle)
        bus.on("consoles", lambda _: {"sessions": len(gateway.console.sessions)})

    async def join(self) -> None:
        """Returns when all that is in force is in force here, and nothing will be without this worker. Raises
        :class:`ConfigError` where the files on disk do not have that any more."""
        while news := await self._bus.ask("join", {"number": self._standing.number}, timeout=_JOINS):
            self._catch_up(Standing.from_body(news["standing"]))

    def close(self) -> None:
        """The gateway ends."""
        self._discard()

    def _catch_up(self, standing: Standing) -> None:
        operations = self._gateway.operations
        if (standing.files, standing.settings) != (self._standing.files, self._standing.settings):
            operations.commit(operations.prepare(reader(standing.files)), silent=True)
            for key, value in standing.settings:
                operations.commit(operations.prepare_set(key, value), silent=True)
        _hold(self._gateway, self._standing, standing)
        self._standing = standing

    # -- the configuration ---------------------------------------------------------------------------------------------

    def _prepare(self, body: Body) -> Body:
        self._discard()
        operations = self._gateway.operations
        try:
            if "set" in body:
                prepared = operations.prepare_set(*body["set"])
                digest = ""
            else:
                prepared = operations.prepare(reader(body["files"]))
                digest = _digest(prepared.loaded.config)
        except ConfigError as error:
            # It has not the shape of an error that travels.
            return {"fault": str(error)}
        self._prepared = body["number"], prepared
        return {"digest": digest}

    def _commit(self, body: Body) -> None:
        if self._prepared is None or self._prepared[0] != body["number"]:
            raise InternalError("it is not prepared for that")
        (_, prepared), self._prepared = self._prepared, None
        self._gateway.operations.commit(prepared, silent=body["speaker"] != self._index)

    def _discard(self) -> None:
        if self._prepared is not None:
            self._prepared[1].discard()
            self._prepared = None

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _act(self, body: Body) -> None:
        operations, database = self._gateway.operations, body["database"]
        match body["verb"]:
            case "pause":
                operations.begin_pause(database)
            case "resume":
                operations.resume(database)
            case "suspend":
                operations.begin_suspend()
            case "force_suspend":
                operations.force_suspend()
            case "disable":
                operations.disable(database)
            case "enable":
                operations.enable(database)
            case "reconnect":
                operations.reconnect(database)
            case "kill":
                operations.kill(database)
            case "wait_close":
                # There is such a database: more is not to be done before it is waited for.
                pass
            case "kill_client":
                operations.kill_client(body["session"])
            case verb:
                raise InternalError(f"{verb} means nothing here")

    async def _settle(self, body: Body) -> Body:
        operations, database, patience = self._gateway.operations, body["database"], body["patience"]
        match body["verb"]:
            case "pause":
                return {"settled": await operations.is_idle(database, patience)}
            case "suspend":
                return {"settled": await operations.is_empty(patience)}
            case "wait_close":
                return {"settled": await operations.is_closed(database, patience)}
            case verb:
                raise InternalError(f"{verb} means nothing here")


def _hold(gateway: Gateway, before: Standing, after: Standing) -> None:
    """Pauses, suspends and disables what others have, and resumes and enables it where they do not any more."""
    operations = gateway.operations
    if before.state != after.state and before.state != "active":
        operations.resume(None)
    for database in before.paused_databases - after.paused_databases:
        _unless_gone(operations.resume, database)
    for database in after.paused_databases - before.paused_databases:
        _unless_gone(operations.begin_pause, database)
    for database in before.disabled_databases - after.disabled_databases:
        _unless_gone(operations.enable, database)
    for database in after.disabled_databases - before.disabled_databases:
        _unless_gone(operations.disable, database)
    # Behind the databases: nothing is paused on top of that.
    if before.state != after.state and after.state == "paused":
        operations.begin_pause(None)
    elif before.state != after.state and after.state == "suspended":
        operations.begin_suspend()


def _unless_gone(act: Callable[[str], None], database: str) -> None:
    """With another configuration, there may be no such database any more."""
    with contextlib.suppress(GatewayError):
        act(database)


def _digest(config: Config) -> str:
    """Of all files that ``config`` names, by what is in them now."""
    seen = hashlib.sha256()
    for path in sorted(set(_named(config))):
        try:
            data = Path(path).read_bytes()
        except OSError:
            data = b""
        seen.update(f"{path}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return seen.hexdigest()


def _named(config: Config) -> Iterator[str]:
    anywhere = () if config.any_database is None else (config.any_database,)
    for entry, keys in ((config, READABLE), *((each, TLS_FILES) for each in (*config.databases.values(), *anywhere))):
        for key in keys:
            if path := getattr(entry, key):
                yield path
