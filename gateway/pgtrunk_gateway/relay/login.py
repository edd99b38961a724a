"""The login of a session: from its first octet to ReadyForQuery.

    SSLRequest, GSSENCRequest -> 'N';  CancelRequest -> served, no session;
    StartupMessage -> the login dialogue (:mod:`pgtrunk_gateway.auth.login`) -> database -> settings -> welcome

A coroutine per login, with client_login_timeout as its deadline. What it decides is in pure functions; it only reads,
writes and waits.

In early data (:mod:`~pgtrunk_gateway.relay.dialogue`) a login only begins: it counts against no limit, and does not
end, well or badly, before the handshake is complete. Then what is left of it takes its turn, as if it had come just
now: a cancel request is acted on, a replication connection or a visit to the console begins, a failure is told, counted
and logged. One that never comes to that leaves no trace.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.startup import PROTOCOL_3_0, CancelRequest
from pgtrunk_gateway.config.entries import CONSOLE_NAMES, DatabaseConfig
from pgtrunk_gateway.errors import (
    BackendLost,
    BackendUnavailable,
    CannotConnectNow,
    GatewayError,
    InternalError,
    LoginTimeout,
    LookupFailed,
    NoSuchDatabase,
    NotSupported,
    ProtocolError,
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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping

    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.pool.walsender import Replication
    from pgtrunk_gateway.relay.admission import Client
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.tally import Place

__all__ = ["NOBODY", "SessionLogin"]

log = logging.getLogger(__name__)

NOBODY: Final = "(nodb)/(nouser)"
"""What the log has in place of names that are not known."""
_SHOWN: Final = 63
"""Characters of a name that the log shows before it is known to be one, as many as Postgres' names have."""
_CONSOLE: Final = DatabaseConfig(name="pgbouncer")
"""As what the console counts, whatever the client calls it."""
_T = TypeVar("_T")


class SessionLogin:
    """One login."""

    def __init__(self, context: Context, client: Client) -> None:
        self._context = context
        self._client = client
        self._dialogue = Dialogue(client.transport)
        self._place: Place | None = None
        self._pool: Pool | None = None
        """Whose first login at the server is waited for, or its own."""
        self.replication: Replication | None = None
        """Which kind of it the client has asked for."""
        self._protocol = PROTOCOL_3_0
        """What the client speaks."""
        self.asked = NOBODY
        """Which database as which user, for the log."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="login")
        self._task.add_done_callback(self._ended)
        self.data_received = self._dialogue.data_received

    @property
    def is_early(self) -> bool:
        """Whether all that is known of it may be a replay."""
        return self._dialogue.is_early

    @property
    def pool(self) -> Pool | None:
        """Whose first login at the server it waits for, or its own; None: it has not come to that."""
        return self._pool

    def eof_received(self) -> None:
        """The client says no more. Who has sent a cancel request need not wait for it; who wanted a session is gone,
        whatever the login waits for, unless some of what it sent ahead is still to be read."""
        self._dialogue.eof_received()
        if self._place is not None and self._dialogue.is_over:
            self._client.vanished()

    def stop(self) -> None:
        """The session has ended."""
        if self._task is not asyncio.current_task():
            self._task.cancel()

    # -- the dialogue --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        timeout = self._context.config.client_login_timeout
        error: GatewayError
        try:
            async with asyncio.timeout(timeout or None):
                outcome = await self._confirmed()
            if isinstance(outcome, CancelRequest):
                # All of it is there. How long it may take from now on is cancel_wait_timeout's affair.
                await self._context.cancels.serve(outcome, self._client.address)
        except ConnectionError:
            self._uncount()
            self._client.vanished()
            return
        except TimeoutError:
            if self._dialogue.is_early:
                # There may be nobody to tell it to.
                self._uncount()
                self._client.vanished()
                return
            error = self._too_late("client_login_timeout", timeout)
        except ProtocolViolation as violation:
            error = ProtocolError(str(violation), sqlstate=violation.sqlstate)
        except GatewayError as refusal:
            error = refusal
        except asyncio.CancelledError:
            self._uncount()
            raise
        else:
            self._succeeded(outcome)
            return
        self._uncount()
        self._context.counters.refused += 1
        self._client.fail(error)

    async def _confirmed(self) -> Admission | Visit | Passage | CancelRequest:
        """What the login leads to, however much of it came as early data."""
        try:
            outcome = await self._log_in()
        except (GatewayError, ProtocolViolation):
            await self._dialogue.confirmed()
            raise
        await self._dialogue.confirmed()
        return outcome

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (fault := task.exception()) is None:
            return
        # A fault of ours: it ends this login, and is logged with all that is known.
        log.error("%s the login failed", self._client, exc_info=fault)
        self._uncount()
        self._context.counters.refused += 1
        self._client.fail(InternalError())

    def _succeeded(self, outcome: Admission | Visit | Passage | CancelRequest) -> None:
        if isinstance(outcome, Visit):
            self._client.visits(outcome, self._dialogue.rest(), over=self._dialogue.ended)
        elif isinstance(outcome, Admission):
            self._admit(outcome)
        elif isinstance(outcome, Passage):
            assert self._context.replicate is not None
            self._context.counters.admitted += 1
            self._context.replicate(self._client, outcome, self._dialogue.rest(), over=self._dialogue.ended)
        else:
            self._client.served()

    def _admit(self, admission: Admission) -> None:
        self._context.counters.admitted += 1
        self._client.admitted(admission, self._dialogue.rest())
        if self._dialogue.ended:
            self._client.vanished()

    def _uncount(self) -> None:
        if self._place is not None:
            self._place.leave()

    async def _log_in(self) -> Admission | Visit | Passage | CancelRequest:
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
        entry = self._context.config.database(database)
        accepted = await authenticate(self._context, self._dialogue, user, self._client.address, entry)
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
            raise self._too_late(setting, timeouts[setting]) from None

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

    def _too_late(self, setting: str, timeout: float) -> LoginTimeout:
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
        """As :meth:`_enter`, once the handshake is complete."""
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
