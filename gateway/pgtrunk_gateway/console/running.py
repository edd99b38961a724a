"""Runs what the console was asked for: checks the rights, then looks or acts."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, assert_never

from pgtrunk_gateway.config.entries import CONSOLE_NAMES
from pgtrunk_gateway.console.calls import FAKES, Act, Call, Fake, Help, Look, Set
from pgtrunk_gateway.console.columns import Table
from pgtrunk_gateway.console.operations import done
from pgtrunk_gateway.console.registry import Argument, usage
from pgtrunk_gateway.console.reply import Reply
from pgtrunk_gateway.errors import ConfigError, GatewayError, InvalidArgument, NotAllowed

if TYPE_CHECKING:
    from pgtrunk_gateway.console.operations import Operations
    from pgtrunk_gateway.console.others import Others
    from pgtrunk_gateway.console.view import View

__all__ = ["run", "undo"]

log = logging.getLogger(__name__)


async def run(call: Call, view: View, operations: Operations, *, admin: bool, others: Others | None = None) -> Reply:
    """``others`` are those of a fleet. Raises a :class:`GatewayError` where it is not done."""
    match call:
        case Help():
            return Reply("SHOW", notice="Console usage", detail=usage())
        case Fake(is_set=True):
            return Reply("SET", notice="SET ignored")
        case Fake(name=name):
            return Reply("SHOW", Table(call.columns, [(FAKES[name],)]))
        case Look(show):
            if show.for_admins:
                _check_rights(admin)
            if others is not None:
                collected = await others.collect(show, by_worker=call.by_worker)
                return Reply("SHOW", Table(call.columns, collected.rows), warnings=collected.remarks)
            rows = show.rows(view)
            if call.by_worker:
                rows = ((*row, view.place.worker) for row in rows)
            return Reply("SHOW", Table(call.columns, rows))
        case Set(key, value):
            _check_rights(admin)
            await done(operations.set(key, value))
            return Reply(f"SET {key}={value}", warnings=operations.remarks)
        case Act():
            return await _act(call, operations, admin=admin)
        case _:
            assert_never(call)


async def undo(call: Call, operations: Operations) -> None:
    """Takes back a command that waited and has been cancelled: no more than that it was cancelled is said of it."""
    if isinstance(call, Act) and call.verb.undo is not None:
        with contextlib.suppress(GatewayError):
            await call.verb.undo(operations, call.argument)


async def _act(call: Act, operations: Operations, *, admin: bool) -> Reply:
    verb = call.verb
    _check_rights(admin)
    if verb.argument is Argument.DATABASE and not call.argument:
        raise InvalidArgument("a database is required")
    if verb.argument.is_database and call.argument in CONSOLE_NAMES:
        raise InvalidArgument(f"cannot {verb.name.lower()} admin db: {call.argument}")
    argument = f"'{call.argument}'" if verb.argument.is_database else call.argument
    log.info("%s command issued", f"{verb.name} {argument}" if call.argument else verb.name)
    try:
        await verb.act(operations, call.argument)
    except ConfigError as error:
        raise GatewayError(
            "RELOAD failed, see logs for additional details", sqlstate=error.sqlstate, detail=str(error)
        ) from error
    return Reply(verb.name, warnings=operations.remarks)


def _check_rights(admin: bool) -> None:
    if not admin:
        raise NotAllowed()
