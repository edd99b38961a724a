"""The verbs: each calls one method of the gateway's operations, and returns when that is done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.operations import done
from pgtrunk_gateway.console.registry import VERBS, Argument, verb
from pgtrunk_gateway.errors import InvalidArgument

if TYPE_CHECKING:
    from pgtrunk_gateway.console.operations import Operations, Wait

__all__ = ["VERBS"]

_WAITS: Final[dict[str, Wait | None]] = {"": None, "WAIT_FOR_SERVERS": "servers", "WAIT_FOR_CLIENTS": "clients"}

_LAST: Final = 10.0
"""Seconds that SHUTDOWN waits for the end of the gateway, before it says that it has begun."""
_MAX_ID: Final = 19
"""Digits of a session's id."""


@verb("RELOAD", Argument.NONE)
async def reload(operations: Operations, argument: str) -> None:
    await operations.reload()


async def _resume(operations: Operations, argument: str) -> None:
    await done(operations.resume(argument or None))


@verb("PAUSE", Argument.OPTIONAL_DATABASE, undo=_resume)
async def pause(operations: Operations, argument: str) -> None:
    await operations.pause(argument or None)


verb("RESUME", Argument.OPTIONAL_DATABASE)(_resume)


@verb("DISABLE", Argument.DATABASE)
async def disable(operations: Operations, argument: str) -> None:
    await done(operations.disable(argument))


@verb("ENABLE", Argument.DATABASE)
async def enable(operations: Operations, argument: str) -> None:
    await done(operations.enable(argument))


@verb("RECONNECT", Argument.OPTIONAL_DATABASE)
async def reconnect(operations: Operations, argument: str) -> None:
    await done(operations.reconnect(argument or None))


@verb("KILL", Argument.OPTIONAL_DATABASE)
async def kill(operations: Operations, argument: str) -> None:
    await done(operations.kill(argument or None))


@verb("KILL_CLIENT", Argument.CLIENT)
async def kill_client(operations: Operations, argument: str) -> None:
    if not (argument.isascii() and argument.isdigit() and len(argument) <= _MAX_ID):
        raise InvalidArgument("invalid client pointer supplied", hint='The column "id" of SHOW CLIENTS has it.')
    await done(operations.kill_client(int(argument)))


@verb("SUSPEND", Argument.NONE, undo=_resume)
async def suspend(operations: Operations, argument: str) -> None:
    await operations.suspend()


@verb("SHUTDOWN", Argument.WAIT)
async def shutdown(operations: Operations, argument: str) -> None:
    await done(operations.shutdown(_WAITS[argument.upper()]))
    if not argument:
        # As PgBouncer has it: the connection's end tells that the gateway is gone.
        await asyncio.sleep(_LAST)


@verb("WAIT_CLOSE", Argument.OPTIONAL_DATABASE)
async def wait_close(operations: Operations, argument: str) -> None:
    await operations.wait_close(argument or None)
