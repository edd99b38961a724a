"""A list of servers of which a database wants one that is a primary, a standby, writable ... (target_session_attrs).

To the pools it is one :class:`Host`: it is up or down, and tells them. A connection is tried at one server after the
other, in the order of :mod:`~pgtrunk_gateway.pool.candidates`, until one is what is asked for; each login says that of
itself. Rules:

1.  While no server is known that is what is asked for, one connection looks for all pools, as one tries for all while a
    server is down. So at a failover each server is asked once per round, however many sessions wait.
2.  A failed round is a failure of the list. The pause after it is ``LONGEST`` at most: that is how long sessions wait
    more than they must after a promotion.
3.  What is refused for good by one server (a wrong password) is not tried at the next.
4.  Where a login shows that a server is not what is asked for any more, or that the one primary is elsewhere, all
    backends at the old place retire: idle ones are closed, leased ones when they are given back.
5.  A backend that reports that its server is a standby no more (``in_hot_standby``, which nobody can SET) is believed
    at once. One that refuses to write (25006) says nothing certain, since any session can be read-only: another
    connection is opened in its place, and its login tells. That is asked again only after pauses that grow.
6.  Two servers that both say that they are the primary cannot be told apart here. To see to it that there is only one
    is the business of whoever promotes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as wire
from pgtrunk.wire import frontend as client
from pgtrunk_gateway.errors import BackendUnavailable, GatewayError
from pgtrunk_gateway.pool.backoff import DOWN, Backoff, is_down, is_for_now
from pgtrunk_gateway.pool.candidates import Candidate, in_order
from pgtrunk_gateway.pool.connect import log_in
from pgtrunk_gateway.pool.host import Host
from pgtrunk_gateway.pool.standing import SOLE, Standing, qualifies, reported

if TYPE_CHECKING:
    from pgtrunk_gateway.config.entries import LoadBalance, Place, SessionAttrs
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.connect import Deriver, Opened, SocketTuner
    from pgtrunk_gateway.pool.target import Target

__all__ = ["LONGEST", "HostList", "Listed"]

log = logging.getLogger(__name__)

LONGEST: Final = 1.0
"""Seconds between two rounds, at most."""
_KNOWN_FOR: Final = 60.0
"""Seconds after which a server that was something else than is asked for counts as unknown."""
_DOUBTED_FIRST: Final = 1.0
_DOUBTED_LAST: Final = 60.0
"""Seconds between two logins that only ask whether a server that refused to write is still what it was."""
_CRASHED: Final = "server conn crashed?"


class Listed:
    """One server of a list, and what connections have taught about it."""

    def __init__(self, place: Place, retry: Callable[[], float]) -> None:
        self.place = place
        self.host = Host(retry)
        """Which protocol it speaks."""
        self.backoff = Backoff()
        self.standing: Standing | None = None
        """None: not known, or doubtful."""
        self._known_at = 0.0
        self.doubt_again_at = 0.0
        self._doubted_for = _DOUBTED_FIRST

    def learned(self, standing: Standing, now: float) -> None:
        self.backoff.succeeded()
        if standing != self.standing:
            self._doubted_for = _DOUBTED_FIRST
        self.standing, self._known_at = standing, now

    def failed(self, error: GatewayError, *, began: float, now: float, retry: float) -> None:
        self.standing = None
        self.backoff.failed(error, began=began, now=now, retry=retry)

    def doubt(self, now: float) -> bool:
        """Whether it is time to ask it once more."""
        if now < self.doubt_again_at:
            return False
        self.doubt_again_at = now + self._doubted_for
        self._doubted_for = min(2 * self._doubted_for, _DOUBTED_LAST)
        return True

    def fits(self, attrs: SessionAttrs, now: float) -> bool | None:
        """Whether it is what is asked for, as far as that is known."""
        if self.standing is None:
            return None
        fits = qualifies(self.standing, attrs)
        return None if fits is False and now >= self._known_at + _KNOWN_FOR else fits

    def candidate(self, attrs: SessionAttrs, now: float) -> Candidate:
        return Candidate(self.fits(attrs, now), is_down=bool(self.backoff.failures) and now < self.backoff.retry_at)


class HostList(Host):
    """One list. ``label``: its name in errors and in the log; ``retry``: the longest pause now (server_login_retry)."""

    def __init__(
        self,
        places: Sequence[Place],
        attrs: SessionAttrs,
        balance: LoadBalance,
        *,
        label: str,
        retry: Callable[[], float],
    ) -> None:
        super().__init__(lambda: min(retry(), LONGEST))
        self.attrs: SessionAttrs = attrs
        self.label = label
        self.current: Listed | None = None
        """The server of the last connection."""
        self.on_failure: Callable[[], None] | None = None
        """Told when none of the servers will do: whoever named them may know better by now."""
        self._server_retry = retry
        self._several = attrs not in SOLE and balance == "round-robin"
        self._turn = -1
        self.servers = [Listed(place, retry) for place in places]

    # -- as one host ---------------------------------------------------------------------------------------------------

    @property
    def admits(self) -> int | None:
        """How many connections may be opened now, ``retry_at`` aside; None: any number."""
        if not self.backoff.failures and not self._must_look:
            return None
        return 0 if self._probe is not None else 1

    @property
    def _must_look(self) -> bool:
        if self._several and self.attrs == "any":
            return False
        now = self._loop.time()
        # A primary will do as well, once it is known that there is no standby.
        wanted: SessionAttrs = "any" if self.attrs == "prefer-standby" else self.attrs
        return not any(server.fits(wanted, now) for server in self.servers)

    def begins(self, attempt: object) -> None:
        if self.admits is not None and self._probe is None:
            self._probe = attempt

    def succeeded(self) -> None:
        was_looking = self._probe is not None or bool(self.backoff.failures)
        self.backoff.succeeded()
        self._probe = None
        if was_looking:
            self._tell()

    def lost(self, backend: Backend, reason: str) -> None:
        """A backend has ended, and not by itself where its server stops or breaks down: then that is asked anew."""
        fatal = backend.replies.fatal
        stops = fatal is not None and wire.parse_error(fatal).sqlstate in DOWN
        if (stops or reason.startswith(_CRASHED)) and (server := self._of(backend)) is not None:
            server.standing = None

    # -- a connection --------------------------------------------------------------------------------------------------

    async def find(self, target: Target, *, name: str, timeout: float, derive: Deriver, tune: SocketTuner) -> Opened:
        """Opens a connection to the first server that will do, within ``timeout`` seconds at each of them.

        ``name``: the pool's, for the log. Raises as :func:`~pgtrunk_gateway.pool.connect.log_in`.
        """
        errors: dict[Listed, GatewayError] = {}
        self._turn += 1
        # libpq's way: a standby if there is one, and else whatever there is.
        rounds: tuple[SessionAttrs, ...] = ("standby", "any") if self.attrs == "prefer-standby" else (self.attrs,)
        for attrs in rounds:
            for server in self._order(attrs, hopeful=attrs != rounds[-1]):
                if isinstance(errors.get(server), _Unfit):
                    del errors[server]
                if server in errors:
                    continue
                outcome = await self._try(server, attrs, target, name, timeout, derive, tune)
                if not isinstance(outcome, GatewayError):
                    return outcome
                errors[server] = outcome
                if not is_down(outcome) and self.attrs in SOLE and server.fits(attrs, self._loop.time()):
                    # It is the one, and has no place just now: none of the others would do.
                    raise outcome
        if self.on_failure is not None:
            self.on_failure()
        raise self._none_will_do(errors)

    def _order(self, attrs: SessionAttrs, *, hopeful: bool) -> list[Listed]:
        """``hopeful``: without those of which there is no hope, since something else would do too."""
        now, servers = self._loop.time(), self.servers
        if not servers:
            return []
        first = self._turn if self._several else servers.index(self.current) if self.current in servers else 0
        candidates = [server.candidate(attrs, now) for server in servers]
        order = in_order(candidates, first=first, several=self._several)
        return [servers[at] for at in order if not hopeful or candidates[at].is_hopeful]

    async def _try(
        self,
        server: Listed,
        attrs: SessionAttrs,
        target: Target,
        name: str,
        timeout: float,
        derive: Deriver,
        tune: SocketTuner,
    ) -> Opened | GatewayError:
        began = self._loop.time()
        place = target.at(server.place)
        try:
            opened = await log_in(place, timeout=timeout, derive=derive, tune=tune, host=server.host, attrs=attrs)
        except GatewayError as error:
            if not is_for_now(error):
                raise
            now = self._loop.time()
            log.warning(
                "%s@%s closing because: %s (age=%ds)", name, place, error.log or error.message, int(now - began)
            )
            if is_down(error):
                server.failed(error, began=began, now=now, retry=self._server_retry())
            return error
        server.learned(opened.standing, self._loop.time())
        if server in self.servers and qualifies(opened.standing, attrs):
            self._found(server)
            return opened
        log.info("%s@%s closing because: target_session_attrs = %s, it is %s", name, place, attrs, opened.standing)
        opened.transport.write(client.TERMINATE_MESSAGE)
        opened.transport.close()
        # Where any server would do if there is no better one, those that are there may stay.
        if self.attrs != "prefer-standby":
            self._desert(server)
        return _Unfit(f"{place} is {opened.standing}")

    def _found(self, server: Listed) -> None:
        before, self.current = self.current, server
        if before is server or self.attrs not in SOLE:
            return
        log.warning("%s: %s is at %s:%d", self.label, self.attrs, server.place.host, server.place.port)
        now = self._loop.time()
        for other in self.servers:
            if other is not server and not other.fits(self.attrs, now):
                self._desert(other)

    def _none_will_do(self, errors: dict[Listed, GatewayError]) -> GatewayError:
        full = [error for error in errors.values() if not is_down(error)]
        if full:
            # It is there, and has no place just now.
            return full[0]
        said = "; ".join(error.message for error in errors.values()) or "no server is named yet"
        return BackendUnavailable(
            f"no server of {self.label} is what is wanted: {said}",
            detail=f"target_session_attrs = {self.attrs}.",
            log=f"no server with target_session_attrs = {self.attrs} ({said})",
        )

    # -- what backends say ---------------------------------------------------------------------------------------------

    def heard(self, backend: Backend) -> bool:
        """``backend`` has reported something, or refused to write -> whether a login is to tell what its server is."""
        replies = backend.replies
        server = self._of(backend)
        if server is None:
            return False
        standby = reported(replies.parameters).standby
        known = server.standing.standby if server.standing is not None else None
        if standby is False and known:
            # Of the rest, a session's own settings say nothing.
            server.learned(reported({**replies.began, "in_hot_standby": "off"}), self._loop.time())
            if self.attrs != "prefer-standby" and qualifies(server.standing or Standing(), self.attrs) is False:
                self._desert(server)
        refused, replies.read_only = replies.read_only, False
        return refused and self.attrs in SOLE and server.doubt(self._loop.time())

    # -- other servers -------------------------------------------------------------------------------------------------

    def change(self, places: Sequence[Place]) -> None:
        """The list is another one from now on. What is known of a server that stays is kept."""
        if [server.place for server in self.servers] == list(places):
            return
        before = {server.place: server for server in self.servers}
        self.servers = [before.get(place) or Listed(place, self._server_retry) for place in places]
        self.backoff.succeeded()
        for place, server in before.items():
            if server not in self.servers:
                if server is self.current:
                    self.current = None
                for tenant in list(self.tenants):
                    tenant.desert(place, self._reason, coming=True)
        self._tell()

    def _of(self, backend: Backend) -> Listed | None:
        place = backend.target.place
        return next((server for server in self.servers if server.place == place), None)

    @property
    def _reason(self) -> str:
        return f"server is not {self.attrs} any more"

    def _desert(self, server: Listed) -> None:
        for tenant in list(self.tenants):
            tenant.desert(server.place, self._reason)


class _Unfit(BackendUnavailable):
    """A server that is there, and is something else than what is asked for."""
