"""What the console's verbs need of the gateway, or of the fleet that it is one of.

The console parses, checks the rights and replies; the gateway acts. So each method says what has happened when it
returns, or when what it returns has been awaited, and raises a :class:`GatewayError` where it was not done, with
severity ERROR: the console goes on. A ``database`` is the name of an entry, or one that "*" stands for; None means all.
Where there is no such database, a method raises :class:`NoSuchDatabase` ("no such database: X").

The methods that wait may be cancelled at any time, which ends the waiting and undoes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Literal, Protocol, TypeAlias

__all__ = ["Done", "Operations", "PoolerState", "Wait", "done"]

PoolerState: TypeAlias = Literal["active", "paused", "suspended"]
Wait: TypeAlias = Literal["servers", "clients"]
Done: TypeAlias = Awaitable[None] | None
"""To be awaited, unless it is None: one gateway does at once what a fleet has to be asked for. See :func:`done`."""


async def done(what: Done) -> None:
    """Returns when it is."""
    if what is not None:
        await what


class Operations(Protocol):
    """The gateway, as an administrator steers it."""

    @property
    def state(self) -> PoolerState:
        """Of the gateway as a whole; databases may be paused beside it."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """What the administrator is to know beside the answer, such as a worker that has not answered."""
        ...

    async def reload(self) -> None:
        """Reads the configuration again (RELOAD, SIGHUP). Raises :class:`ConfigError` where it is wrong; then nothing
        has changed."""

    def set(self, key: str, value: str) -> Done:
        """Changes a key of the main section until the next reload (SET). Raises with 22023 for a value that it cannot
        have, 42704 for an unknown key, 55P02 for one that only a restart changes."""

    async def pause(self, database: str | None) -> None:
        """Gives out no more backends, and returns when none is leased (PAUSE). Raises with 55000 when the gateway is
        paused or suspended already ("already suspended/paused")."""

    def resume(self, database: str | None) -> Done:
        """Ends a pause or suspension (RESUME). Raises with 55000 when there is none ("pooler is not paused/suspended",
        "database X is not paused")."""

    async def suspend(self) -> None:
        """Reads no more of clients and backends, and returns when all buffers are empty, or after suspend_timeout
        (SUSPEND). Raises with 55000 as :meth:`pause`."""

    def disable(self, database: str) -> Done:
        """Refuses new sessions in ``database`` (DISABLE)."""

    def enable(self, database: str) -> Done:
        """Lets them in again (ENABLE)."""

    def reconnect(self, database: str | None) -> Done:
        """Replaces each backend as soon as it is free (RECONNECT)."""

    def kill(self, database: str | None) -> Done:
        """Drops sessions and backends at once; ``database`` is paused from then on (KILL). Raises with 55000 when the
        gateway is paused already."""

    def kill_client(self, session: int) -> Done:
        """Drops the session of this id (KILL_CLIENT). Raises with 42704 when there is none ("client not found")."""

    async def wait_close(self, database: str | None) -> None:
        """Returns when all backends that :meth:`reconnect` has told to go are gone (WAIT_CLOSE)."""

    def shutdown(self, wait: Wait | None) -> Done:
        """Begins to stop and returns (SHUTDOWN): at once, when transactions have ended, or when clients have left."""
