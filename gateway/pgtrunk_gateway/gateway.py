"""The gateway: everything put together, started and stopped.

:class:`Gateway` runs in one event loop. It opens the fronts, gives each session the :class:`Context` that they share,
and ends in one of three ways, which PgBouncer's signals choose: when its clients have left, when their transactions
have ended, or at once. Signals, command line and log are elsewhere (:mod:`~pgtrunk_gateway.cli`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from pgtrunk.closing import close_each
from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.dispatch import Dispatcher
from pgtrunk_gateway.cancel.peer import peers_of
from pgtrunk_gateway.console.console import Console
from pgtrunk_gateway.console.view import ALONE, Place
from pgtrunk_gateway.derive import KeyDeriver
from pgtrunk_gateway.errors import ShuttingDown
from pgtrunk_gateway.fleet.cancels import SiblingCancels
from pgtrunk_gateway.fleet.deeds import Deeds
from pgtrunk_gateway.fleet.moves import SiblingMoves
from pgtrunk_gateway.fleet.orphans import Orphans
from pgtrunk_gateway.fleet.purse import Purse
from pgtrunk_gateway.fleet.standing import Standing
from pgtrunk_gateway.fleet.turnstile import Turnstile
from pgtrunk_gateway.fleet.voice import Voice
from pgtrunk_gateway.fronts.opening import open_fronts
from pgtrunk_gateway.fronts.quic import QuicFront
from pgtrunk_gateway.fronts.tcp import check_tuning, tcp_tuner
from pgtrunk_gateway.leaving import until_left
from pgtrunk_gateway.moving import Moving
from pgtrunk_gateway.operations import GatewayOperations
from pgtrunk_gateway.pool.lookups import Lookups
from pgtrunk_gateway.pool.pools import Pools
from pgtrunk_gateway.relay.context import Context
from pgtrunk_gateway.relay.replication import take_over
from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.reloading import OpenLog, login_policy, read_userlist
from pgtrunk_gateway.session.statements import Catalogue
from pgtrunk_gateway.stopping import Stopping
from pgtrunk_gateway.tls import TlsKeeper

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fleet.fleet import Fleet
    from pgtrunk_gateway.fronts.front import Front
    from pgtrunk_gateway.pool.target import Target

__all__ = ["Gateway"]

log = logging.getLogger(__name__)

_LAST_WORDS = 2.0
"""Seconds that sessions have to take their last message, and cancels to reach Postgres, before they are dropped."""


class Gateway:
    """One gateway process. ``async with Gateway(loaded)`` starts it, and closes it at once at the end.

    ``open_log``: how a reload gets the log that the configuration asks for; without it the log stays as it is.
    ``fleet``: where the gateway is one of several workers; without it it is the only one, and listens itself.
    """

    def __init__(self, loaded: Loaded, open_log: OpenLog | None = None, fleet: Fleet | None = None) -> None:
        self.loaded = loaded
        """What is in force; a reload puts another in its place."""
        self.fleet = fleet
        """The others, where there are any."""
        config = loaded.config
        self.fronts: list[Front] = []
        self.derive = KeyDeriver()
        check_tuning(loaded)
        self._tune = tcp_tuner(lambda: self.loaded.config)
        userlist = read_userlist(config.auth_file)
        tls = TlsKeeper()
        tls.reload(loaded)
        purse = None if fleet is None else Purse(fleet.member.bus, tune=self._tune)
        self.pools = Pools(config, userlist, derive=self.derive, tune=self._tune, tls=tls.server, purse=purse)
        self.cancels = Dispatcher(
            peer_id=config.peer_id,
            random=os.urandom,
            timeout=config.cancel_wait_timeout,
            tune=self._tune,
            limiter=LoginLimiter(config.login_failure_limit, config.login_failure_window),
            peers=peers_of(config, tls.peer),
        )
        self.context = Context(
            config=config,
            catalogue=Catalogue(),
            policy=login_policy(config, userlist, os.urandom(32) if fleet is None else fleet.charter.secrets.mock_key),
            limiter=LoginLimiter(config.login_failure_limit, config.login_failure_window),
            cancels=self.cancels,
            lanes=self.cancels.lanes,
            derive=self.derive,
            pool=self.pools.get,
            tls=tls,
            databases=self.pools.databases,
            random=os.urandom,
        )
        self.lookups = Lookups(
            config=lambda: self.context.config,
            target=self.pools.target,
            host=self.pools.hosts.of,
            disabled=lambda name: (state := self.pools.databases.get(name)) is not None and state.disabled,
            derive=self.derive,
            tune=self._tune,
        )
        self.context.lookup = self.lookups.find
        self.context.replicate = take_over
        if fleet is not None:
            self.context.counted = fleet.count_sessions
            SiblingCancels(fleet.member, self.cancels)
            SiblingMoves(fleet.member, self.context.catalogue)
            self.context.tally.turnstile = Turnstile(fleet.member.bus)
            Orphans(fleet.member.bus, self._target, tune=self._tune)
        self.moving = Moving(lambda: self.fronts)
        self.context.has_moment = self.moving.has_moment
        self.stopping = Stopping(self)
        self.operations = GatewayOperations(self, open_log)
        self.console = Console(
            self.operations,
            context=self.context,
            pools=self.pools,
            fronts=lambda: self.fronts,
            loaded=lambda: self.loaded,
            place=ALONE if fleet is None else Place(fleet.index, fleet.charter.generation),
        )
        self.context.console = self.console
        self.voice: Voice | None = None
        self.deeds: Deeds | None = None
        """What the console says and does for the others, and they for it."""
        if fleet is not None:
            self.console.others = self.voice = Voice(self, fleet.member, fleet.board)
            self.deeds = Deeds(self, fleet.member.bus, fleet.index, Standing.from_body(fleet.charter.standing))
        self.retired = False
        """Whether the next gateway has the sockets (online restart)."""
        self._closed = False

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.context.config

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the fronts and what min_pool_size asks for. Raises :class:`ConfigError` where a front cannot open."""
        try:
            self.fronts = await open_fronts(self.loaded, self._session, self._tune, self.fleet)
            if self.deeds is not None:
                # The fleet may have changed since the charter.
                await self.deeds.join()
        except BaseException:
            await self.close()
            raise
        if self.fleet is None or self.fleet.leads:
            self._tell_start()
        self.pools.start()
        self.console.start()
        if self.voice is not None:
            self.voice.start()

    def _tell_start(self) -> None:
        for warning in self.context.tls.warnings:
            log.warning("%s", warning)
        if self.fleet is None:
            for front in self.fronts:
                log.info("listening on %s: %s", front.name, ", ".join(front.addresses))

    def _target(self, database: str, user: str) -> Target | None:
        """Where ``user`` of the server has connections for ``database``; None: nowhere any more."""
        entry = self.config.database(database)
        return None if entry is None else self.pools.target(entry, user)

    def _session(self, front: str) -> Session:
        return Session(self.context, front)

    # -- stop ----------------------------------------------------------------------------------------------------------

    def retire(self) -> list[bytes]:
        """The next gateway accepts and reads from now on: who is here stays. See :meth:`Listener.retire`."""
        self.retired = True
        return [each for front in self.fronts if isinstance(front, QuicFront) for each in front.retire()]

    async def unretire(self) -> None:
        """There is no next one, after all."""
        self.retired = False
        for front in self.fronts:
            if isinstance(front, QuicFront):
                await front.unretire()

    async def wait_for_clients(self) -> None:
        """No new sessions; returns when the last one has ended, or after shutdown_timeout. One that is retired refuses
        nobody: its QUIC connections may have new sessions, until their clients close them; and at shutdown_timeout
        transactions have as much time again."""
        self.moving.ask(self.config.shutdown_timeout)
        if self.retired:
            if await until_left(self):
                log.info("client connections dropped, exiting")
            else:
                await self.wait_for_transactions()
            return
        self._drain()
        if await self._sessions_end():
            log.info("client connections dropped, exiting")

    async def wait_for_transactions(self) -> None:
        """No new sessions; those outside a transaction end now, or if their clients can move after a moment for that,
        the others at its end, or after shutdown_timeout."""
        self.moving.ask(self.config.shutdown_timeout)
        self._drain()
        for session in list(self.context.sessions):
            if not self.moving.has_moment(session.transport):
                session.end_if_idle()
        await self.moving.over()
        self.context.closing_idle = True
        for session in list(self.context.sessions):
            session.end_if_idle()
        if await self._sessions_end():
            log.info("server connections dropped, exiting")

    def _drain(self) -> None:
        self.context.draining = True
        for front in self.fronts:
            front.drain()

    async def _sessions_end(self) -> bool:
        timeout = self.config.shutdown_timeout
        if await self.context.sessions_end(timeout):
            return True
        left = len(self.context.sessions)
        log.warning("shutdown_timeout = %g s: %d sessions have not ended and are closed", timeout, left)
        return False

    async def close(self) -> None:
        """Ends everything at once: sessions are told (57P01), transactions are rolled back."""
        if self._closed:
            return
        self._closed = True
        self.stopping.abandon()
        self._drain()
        close_each(front.stop_accepting for front in self.fronts)
        close_each(session.kill for session in list(self.context.sessions))
        await self.console.close(_LAST_WORDS)
        if self.voice is not None and self.deeds is not None:
            self.voice.close()
            self.deeds.close()
        # What ran for them ends with them: Postgres would not notice before it has something to say.
        await self.cancels.close(_LAST_WORDS)
        await self.pools.close(ShuttingDown())
        if self.context.tally.turnstile is not None:
            await self.context.tally.turnstile.close()
        await self.lookups.close()
        await self.context.sessions_end(_LAST_WORDS)
        close_each(session.transport.abort for session in list(self.context.sessions))
        await asyncio.gather(*(front.close() for front in self.fronts))
        self.derive.close()

    # -- counters ------------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """What is open now, and totals: for tests, and for whoever looks after the gateway."""
        backends = [backend for pool in self.pools for backend in pool.backends.values()]
        now = {
            "sessions": len(self.context.sessions),
            "admitted": self.context.admitted,
            "cancel_keys": len(self.cancels.registry),
            "cancels": len(self.cancels),
            "backends": len(backends),
            "leased": sum(backend.holder is not None for backend in backends),
            "walsenders": sum(pool.walsenders.count for pool in self.pools),
            "connecting": sum(pool.connecting for pool in self.pools),
            "waiting": sum(len(pool.waiting) + pool.walsenders.queued for pool in self.pools),
            "statements": len(self.context.catalogue),
        }
        for front in self.fronts:
            if isinstance(front, QuicFront):
                now |= {
                    "quic_connections": front.connections,
                    "quic_half_open": front.half_open,
                    "quic_streams": front.streams,
                    "quic_held_bytes": front.budget.held,
                    "quic_resets": front.resets,
                    "quic_passed_on": front.passed_on,
                    "quic_dropped": front.dropped,
                }
                now |= {f"quic_handshakes_{name}": count for name, count in asdict(front.handshakes).items()}
        totals = {f"total_{name}": value for name, value in asdict(self.context.counters).items()}
        return now | totals
