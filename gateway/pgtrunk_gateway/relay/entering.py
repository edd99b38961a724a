"""The steps of a login, in the order in which they are taken, and what each of them decides.

    startup packet -> (cancel request) -> protocol -> (console) -> a place -> the dialogue -> database -> limits
    -> settings -> (replication) -> the server's greeting -> welcome

The base of :class:`~pgtrunk_gateway.relay.login.SessionLogin`, which says what becomes of the outcome, and when.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from pgtrunk.wire.startup import PROTOCOL_3_0, CancelRequest, StartupMessage
from pgtrunk_gateway.config.entries import CONSOLE_NAMES, DatabaseConfig
from pgtrunk_gateway.errors import (
    BackendLost,
    BackendUnavailable,
    CannotConnectNow,
    LoginTimeout,
    LookupFailed,
    NoSuchDatabase,
    NotSupported,
    ShuttingDown,
)
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.relay import wishes
from pgtrunk_gateway.relay.admission import Admission, admit
from pgtrunk_gateway.relay.authentication import authenticate
from pgtrunk_gateway.relay.dialogue import Dialogue
from pgtrunk_gateway.relay.passage import Passage
from pgtrunk_gateway.relay.startup import CLOSED_DOOR, negotiate, read_startup
from pgtrunk_gateway.relay.visiting import Visit, log_in_to_console
from pgtrunk_gateway.session import parameters
from pgtrunk_gateway.session.early import OPTION, READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping

    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.pool.walsender import Replication
    from pgtrunk_gateway.relay.admission import Client
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.tally import Place

__all__ = ["NOBODY", "Entering", "Outcome"]

NOBODY: Final = "(nodb)/(nouser)"
"""What the log has in place of names that are not known."""
_SHOWN: Final = 63
"""Characters of a name that the log shows before it is known to be one, as many as Postgres' names have."""
_CONSOLE: Final = DatabaseConfig(name="pgbouncer")
"""As what the console counts, whatever the client calls it."""
_T = TypeVar("_T")

Outcome: TypeAlias = Admission | Visit | Passage | CancelRequest
"""What a login may lead to."""


class Entering:
    """The steps of one login."""

    def __init__(self, context: Context, client: Client) -> None:
        self._context = context
        self._client = client
        self._dialogue = Dialogue(client.transport)
        self._place: Place | None = None
        self._pool: Pool | None = None
        """Whose first login at the server is waited for, or its own."""
        self.replication: Replication | None = None
        """Which kind of it the client has asked for."""
        self._may_read_early = False
        """Whether a query may run before the handshake is complete."""
        self._protocol = PROTOCOL_3_0
        """What the client speaks."""
        self.asked = NOBODY
        """Which database as which user, for the log."""

    async def log_in(self) -> Outcome:
        door = self._context.tls.door if self._client.front == "tcp" else CLOSED_DOOR
        packet = await read_startup(self._dialogue, door, self._client.replace_transport)
        if isinstance(packet, CancelRequest):
            return packet
        self._protocol, told = negotiate(packet)
        if told:
            self._dialogue.write(told)
        user, database = wishes.names(packet.parameters)
        self.asked = f"{database[:_SHOWN]}/{user[:_SHOWN]}"
        self._note_replication(packet.parameters, database)
        if database in CONSOLE_NAMES and self._context.console is not None:
            visit = await log_in_to_console(self._context, self._dialogue, packet.parameters, self._client.address)
            return await self._count_visit(visit)
        if not self._dialogue.is_early:
            self._place = await self._enter()
        self._may_read_early = self._allows_reading(packet)
        entry = self._context.config.database(database)
        accepted = await authenticate(
            self._context,
            self._dialogue,
            user,
            self._client.address,
            entry,
            may_be_early=self._may_read_early,
        )
        user = accepted.user
        place = self._place or await self._enter_late()
        # A reload may have come in between, and taken the database away.
        entry = self._entry(database)
        await self._settle(place, entry, user)
        # And now perhaps again.
        entry = self._entry(database)
        ignored = self._context.config.ignore_startup_parameters
        wanted = self._settings(packet.parameters, ignored)
        pool = self._context.pool(entry, user)
        if accepted.secret is not None and entry.user is None:
            # A forced user has a password of its own: the client's must never take its place.
            pool.entrust(accepted.secret, accepted.keys)
        self._pool = pool
        if self.replication is not None:
            return await self._replicate(self.replication, place, entry, user, pool, wanted)
        greeting = await self._patiently(pool.greet(), entry, user)
        # Or while the server was waited for.
        entry = self._unchanged(database, user, pool)
        wanted, others = wishes.part(wanted, greeting, ignored)
        certain = not others and all(parameters.is_certain(name, value, greeting) for name, value in wanted.items())
        admission, welcome = admit(
            self._context,
            self._client,
            place,
            pool,
            user=user,
            entry=entry,
            reported={**greeting, **wanted},
            others=others,
            certain=certain,
            protocol=self._protocol,
        )
        self._dialogue.write(welcome)
        return admission

    def _allows_reading(self, packet: StartupMessage) -> bool:
        return (
            self._dialogue.is_early
            and self._context.config.quic_early_data == READ_ONLY
            and packet.options.get(OPTION) == READ_ONLY
            and self.replication is None
        )

    def _settings(self, packet: Mapping[str, str], ignored: Collection[str]) -> dict[str, str]:
        wanted = (wishes.settings if self.replication is None else wishes.forwarded)(packet, ignored)
        if self._context.config.application_name_add_host:
            wanted = wishes.with_host(wanted, self._client.peer)
        return wanted

    def _entry(self, database: str) -> DatabaseConfig:
        """The database as it is now."""
        entry = self._context.config.database(database)
        if entry is None:
            raise NoSuchDatabase(
                f"no such database: {database}", hint='Add it to [databases], or an entry "*" for all others.'
            )
        return entry

    def _unchanged(self, database: str, user: str, pool: Pool) -> DatabaseConfig:
        """The database as it is now, if that is still served by ``pool``."""
        entry = self._entry(database)
        if self._context.pool(entry, user) is not pool:
            raise ShuttingDown("database configuration changed")
        return entry

    async def _patiently(self, word: Awaitable[_T], entry: DatabaseConfig, user: str) -> _T:
        """Waits for the server's first word, as long as a query would have to wait for a backend."""
        config = self._context.config
        timeouts = {
            "query_wait_timeout": config.resolve_query_wait_timeout(entry, user),
            "query_timeout": config.resolve_query_timeout(user),
        }
        setting = min(timeouts, key=lambda setting: timeouts[setting] or float("inf"))
        try:
            async with asyncio.timeout(timeouts[setting] or None):
                return await word
        except TimeoutError:
            raise self.too_late(setting, timeouts[setting]) from None

    # -- replication ---------------------------------------------------------------------------------------------------

    def _note_replication(self, packet: Mapping[str, str], database: str) -> None:
        self.replication = wishes.replication(packet)
        if self.replication is not None and (self._context.replicate is None or database in CONSOLE_NAMES):
            raise NotSupported("replication connections are not served here", severity="FATAL")

    async def _replicate(
        self,
        kind: Replication,
        place: Place,
        entry: DatabaseConfig,
        user: str,
        pool: Pool,
        settings: Mapping[str, str],
    ) -> Passage:
        """Waits for a connection of the client's own, which is what its welcome comes from."""
        walsender = await self._patiently(pool.replicate(kind, settings), entry, user)
        try:
            self._unchanged(entry.name, user, pool)
            if walsender.state is BackendState.CLOSED:
                raise BackendLost(log="server connection was lost right after its login")
        except BaseException:
            walsender.close("client login failed")
            raise
        return Passage(
            user=user, database=entry.name, pool=pool, place=place, walsender=walsender, protocol=self._protocol
        )

    # -- the rest ------------------------------------------------------------------------------------------------------

    def too_late(self, setting: str, timeout: float) -> LoginTimeout:
        detail = f"{setting} = {timeout:g} s."
        trouble = "" if self._pool is None else self._pool.trouble
        if trouble:
            return LoginTimeout(
                f"{setting} (server down)", sqlstate=BackendUnavailable.sqlstate, detail=detail + trouble
            )
        return LoginTimeout(setting, detail=detail)

    async def _count_visit(self, visit: Visit) -> Visit:
        await self._dialogue.confirmed()
        self._place = place = self._context.tally.visit()
        await place.prove(self._context.config, _CONSOLE, visit.user, exempt=visit.admin)
        return replace(visit, place=place, protocol=self._protocol)

    async def _enter(self) -> Place:
        context = self._context
        if context.draining and not (context.has_moment and context.has_moment(self._client.transport)):
            raise CannotConnectNow("pooler is shutting down")
        return await context.tally.admit(context.config.max_client_conn)

    async def _enter_late(self) -> Place:
        """As :meth:`_enter`, of a login that came as early data."""
        self._place = place = await self._enter()
        if self._dialogue.is_over:
            raise ConnectionResetError("the client has left")
        return place

    async def _settle(self, place: Place, entry: DatabaseConfig, user: str) -> None:
        if self._context.policy.auth_type == "any" and entry.user is None:
            # Read from a file it is refused there; but SET can change one key alone.
            raise LookupFailed(log="auth_type=any requires forced user")
        state = self._context.databases.get(entry.name)
        if state is not None and state.disabled:
            raise NoSuchDatabase(
                f'database "{entry.name}" is disabled', hint="An administrator has disabled it (DISABLE, ENABLE)."
            )
        await place.prove(self._context.config, entry, user)
