"""The login of a session: from its first octet to ReadyForQuery.

    SSLRequest, GSSENCRequest -> 'N';  CancelRequest -> served, no session;
    StartupMessage -> the login dialogue (:mod:`pgtrunk_gateway.auth.login`) -> database -> settings -> welcome

A coroutine per login, with client_login_timeout as its deadline. What it decides is in pure functions; it only reads,
writes and waits.

In early data (:mod:`~pgtrunk_gateway.relay.dialogue`) a login only begins: it counts against no limit, and does not
end, well or badly, before the handshake is complete. Then what is left of it takes its turn, as if it had come just
now: a cancel request is acted on, a replication connection or a visit to the console begins, a failure is told, counted
and logged. One that never comes to that leaves no trace. The exception is a query that only reads, where the client and
the configuration allow it (:mod:`~pgtrunk_gateway.relay.early_query`), and the login takes no proof: then the client is
welcomed at once, and the query runs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.errors import (
    GatewayError,
    InternalError,
    ProtocolError,
    QueryCanceled,
)
from pgtrunk_gateway.relay.admission import Admission
from pgtrunk_gateway.relay.early_query import EarlyQuery
from pgtrunk_gateway.relay.entering import Entering, Outcome
from pgtrunk_gateway.relay.passage import Passage
from pgtrunk_gateway.relay.visiting import Visit
from pgtrunk_gateway.session.early import is_whole, may_run_early

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.relay.admission import Client
    from pgtrunk_gateway.relay.context import Context

__all__ = ["SessionLogin"]

log = logging.getLogger(__name__)


class SessionLogin(Entering):
    """One login."""

    def __init__(self, context: Context, client: Client) -> None:
        super().__init__(context, client)
        self._early_query: EarlyQuery | None = None
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

    def cancel(self) -> None:
        """A cancel request has come for the session."""
        if self._early_query is not None:
            self._early_query.cancel()

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._early_query is not None:
            self._early_query.pause()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._early_query is not None:
            self._early_query.resume()

    def stop(self) -> None:
        """The session has ended."""
        if self._task is not asyncio.current_task():
            self._task.cancel()

    # -- the dialogue --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        timeout = self._context.config.client_login_timeout
        error: GatewayError
        try:
            async with asyncio.timeout(timeout or None) as clock:
                outcome = await self._confirmed(clock)
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
            error = self.too_late("client_login_timeout", timeout)
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

    async def _confirmed(self, clock: asyncio.Timeout) -> Outcome:
        """What the login leads to, however much of it came as early data."""
        try:
            outcome = await self.log_in()
        except (GatewayError, ProtocolViolation):
            await self._dialogue.confirmed()
            raise
        try:
            if isinstance(outcome, Admission) and self._may_read_early:
                await self._read_early(outcome, clock)
            await self._dialogue.confirmed()
        except BaseException:
            if isinstance(outcome, Admission):
                outcome.leave()
            raise
        return outcome

    async def _read_early(self, admission: Admission, clock: asyncio.Timeout) -> None:
        """Runs what the client has sent ahead, if that is one request that only reads."""
        if admission.pool_mode != "transaction" or not (admission.certain or admission.profile in admission.pool.taken):
            return
        data = await self._dialogue.ahead(is_whole)
        if not may_run_early(data):
            return
        # The login is over; from here on it is a query that takes its time.
        clock.reschedule(None)
        self._early_query = query = EarlyQuery(admission, data, self._dialogue.write)
        timeout = admission.terms.query_timeout
        try:
            async with asyncio.timeout(timeout or None):
                if await query.run():
                    self._dialogue.skip()
        except TimeoutError:
            await self._dialogue.confirmed()
            raise QueryCanceled("query timeout", detail=f"query_timeout = {timeout:g} s.", severity="FATAL") from None
        except GatewayError:
            await self._dialogue.confirmed()
            raise
        finally:
            self._early_query = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (fault := task.exception()) is None:
            return
        # A fault of ours: it ends this login, and is logged with all that is known.
        log.error("%s the login failed", self._client, exc_info=fault)
        self._uncount()
        self._context.counters.refused += 1
        self._client.fail(InternalError())

    def _succeeded(self, outcome: Outcome) -> None:
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
