"""Where a trunk's next connection goes, and how it is opened. The allocation says when.

Each dial resolves the names of all gateways anew and races their addresses in the order of `Gateways.plan`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from random import random
from typing import TYPE_CHECKING, Any, Final

from pgtrunk.address import Address
from pgtrunk.errors import CertificateError, GatewayUnreachable, TrunkError
from pgtrunk.gateways import Candidate, Gateways, Move, Step
from pgtrunk.search import Search, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgtrunk.connection import Connection
    from pgtrunk.lines import Lines
    from pgtrunk.quic.client_config import ClientConfig
    from pgtrunk.quic.racing import Attempt, Entrant, Outcome
    from pgtrunk.quic.sockets import AddressInfo
    from pgtrunk.search import Resolver
    from pgtrunk.telemetry import GatewayStats

__all__ = ["Dialer"]

logger = logging.getLogger("pgtrunk")

EARLY_DELAYS: Final = 2
"""Delays of an attempt in which an early connection has to be answered where there is another address."""


class Dialer:
    """Opens the QUIC connections of one trunk, and knows to which gateway each is."""

    def __init__(
        self, addresses: Sequence[Address], config: ClientConfig, *, timeout: float, spreads: bool = True
    ) -> None:
        self.gateways = Gateways(addresses, spreads=spreads, salt=os.urandom(16))
        self.resolver: Resolver = resolve
        self.stays: Callable[[Connection], bool] = lambda connection: connection.leave is None
        """Whether a connection is to stay, and counts."""
        self._config = config
        self._timeout = timeout
        self._open: dict[Connection, Candidate] = {}
        self._coming: list[Candidate] = []
        """Where dials that are under way have begun: others that begin now are to go elsewhere."""
        self._warned: dict[Candidate, str] = {}
        """The certificates that were last said to be wrong."""
        self._named_by: dict[Address, Address] = {}
        """The gateway that has named an address to go to instead of its own."""
        self._useless: Address | None = None
        """An address that was named, and did not answer."""

    def check(self) -> None:
        """Raises `CertificateFileError` for files that cannot be read or do not fit together, and `UsageError`."""
        for address in self.gateways.addresses:
            self._config.quic(address.host, now=time.time())

    async def dial(
        self, at: Address | None = None, *, deadline: float | None = None, begun: list[Entrant] | None = None
    ) -> Connection:
        """Opens a connection within ``connect_timeout``, or until ``deadline``; ``at`` is an address that a gateway has
        named, and takes the place of its own. ``begun`` gets the attempts as they begin.

        Raises `GatewayUnreachable`, `CertificateError` and `CertificateFileError`. Cancelled, it leaves nothing behind.
        """
        places: dict[Address, Address | None] = dict.fromkeys(self.gateways.addresses)
        if at is not None and at != self._useless:
            places[self._named_by.get(at, self.gateways.addresses[0])] = at
        return await self._dial(places, deadline, [] if begun is None else begun)

    async def probe(self, move: Move) -> Connection:
        """Opens a connection where one would be better than where it is. Raises as `dial` does."""
        return await self._dial({move.gateway: None}, None, [], only=move.candidate)

    # What became of connections.

    def follow(self, lines: Lines) -> None:
        """Has a trunk tell what becomes of its connections."""
        lines.on_lost, lines.on_leave, lines.on_answer = self.lost, self.told_to_leave, self.answered
        self.stays = lines.stays

    def answered(self, connection: Connection) -> None:
        """A gateway has answered on a connection that was early."""
        candidate = self._open.get(connection)
        if candidate is not None:
            self.gateways.reached(candidate, getattr(connection, "round_trip_time", None))

    def lost(self, connection: Connection, error: BaseException) -> bool:
        """A connection has ended by itself. Returns whether there is another address to go to at once."""
        candidate = self._open.pop(connection, None)
        if candidate is None:
            return False
        now = asyncio.get_running_loop().time()
        self.gateways.failed(candidate, error, now, random())
        return self.gateways.has_usable(now)

    def told_to_leave(self, connection: Connection) -> None:
        """A gateway asks for a connection to be left, perhaps for another address."""
        candidate, goaway = self._open.get(connection), connection.leave
        if candidate is None or goaway is None:
            return
        if goaway.to is None:
            self.gateways.spare(candidate, asyncio.get_running_loop().time())
        else:
            # By what name to know whom it has named, it does not say. Only the last one is gone to.
            self._named_by, self._useless = {Address(*goaway.to): candidate.gateway}, None

    def placed(self) -> dict[Connection, Candidate]:
        """The connections that are to stay, and where they are."""
        self._open = {connection: at for connection, at in self._open.items() if connection.is_alive}
        return {connection: at for connection, at in self._open.items() if self.stays(connection)}

    def counts(self) -> Counter[Candidate]:
        """How many connections are to stay, or about to come, by address."""
        return Counter([*self.placed().values(), *self._coming])

    def stats(self) -> tuple[GatewayStats, ...]:
        """May be called from any thread."""
        placed = [at for connection, at in list(self._open.items()) if connection.is_alive and self.stays(connection)]
        return self.gateways.stats(Counter(placed))

    # One dial.

    async def _dial(
        self,
        places: dict[Address, Address | None],
        deadline: float | None,
        begun: list[Entrant],
        only: Candidate | None = None,
    ) -> Connection:
        # Imported here, not above: `import pgtrunk` alone stays quick.
        from pgtrunk.quic.racing import attempt_delay, race

        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._timeout
        self._spare_suspects(loop.time())
        places = {each: places[each] for each in self.gateways.order(self.counts(), loop.time()) if each in places}
        begin = self._entrants(next(iter(places)))
        first: list[Candidate] = []

        def start(step: Step) -> Any:
            if not first:
                first.append(step.candidate)
                self._coming.append(step.candidate)
            begun.append(entrant := begin(step.candidate))
            return entrant

        search = Search(self.gateways, self.resolver, timeout=self._timeout, only=only)
        search.begin(places, deadline)
        try:
            await search.wait_first()
            outcome = await race(
                lambda: search.next(self.counts()),
                start,
                lambda step: 0.0 if step.is_probe else attempt_delay(step.round_trip),
                deadline=deadline,
                sources=search.tasks,
            )
        finally:
            search.end()
            for candidate in first:
                self._coming.remove(candidate)
        failed = self._learn(outcome)
        if outcome.winner is None:
            raise self._failure(search.errors + [each.error for each in outcome.attempts if each.error is not None])
        candidate = outcome.winner.candidate.candidate
        # Whoever named an address that does not answer is better found at its own.
        useless = [places[gateway] for gateway in failed - {candidate.gateway}]
        self._useless = next(filter(None, useless), self._useless)
        connection = self._connection(outcome.winner.connection)
        self._open[connection] = candidate
        if connection.is_early:
            loop.call_later(EARLY_DELAYS * outcome.winner.delay, self._doubt, connection)
        return connection

    def _spare_suspects(self, now: float) -> None:
        for connection, candidate in self._open.items():
            if connection.is_suspect:
                self.gateways.spare(candidate, now)

    def _doubt(self, connection: Any) -> None:
        """An early connection has won its race without an answer. Where none comes, and there is another address, its
        sessions are better off there: nothing of what they have said has had an effect."""
        candidate = self._open.get(connection)
        if candidate is None or not connection.is_early or not connection.is_alive or connection.is_heard:
            return
        now = asyncio.get_running_loop().time()
        if self.gateways.has_usable(now, but=candidate):
            connection.driver.abandon(GatewayUnreachable(f"gateway {candidate} did not answer, and there are others"))

    # What is QUIC's.

    def _entrants(self, first: Address) -> Callable[[Candidate], Any]:
        """What begins an attempt at an address. Files are read; raises for those of the ``first`` gateway."""
        from pgtrunk.quic.connecting import Opener

        opener = Opener(self._config, self._timeout)
        opener.read(first.host)
        return lambda candidate: opener.connection(candidate.gateway.host, _info(candidate))

    def _connection(self, winner: Any) -> Connection:
        """What the trunk gets of the attempt that has won."""
        connection: Connection = winner
        return connection

    def __str__(self) -> str:
        return ", ".join(map(str, self.gateways.addresses))

    # What is learned of it.

    def _learn(self, outcome: Outcome[Step, Any]) -> set[Address]:
        """Returns the gateways at which an attempt has failed."""
        from pgtrunk.quic.racing import attempt_delay

        now, failed = outcome.ended, set()
        for attempt in outcome.attempts:
            candidate = attempt.candidate.candidate
            had_time = now - attempt.began >= attempt_delay(attempt.candidate.round_trip)
            if attempt is outcome.winner and attempt.connection.is_early:
                pass  # it is open because a ticket says so, and nobody has answered yet
            elif attempt is outcome.winner:
                self.gateways.reached(candidate, attempt.connection.round_trip_time)
                self._warned.pop(candidate, None)
            elif attempt.error is None and (attempt.connection.is_heard or not had_time):
                self.gateways.undecided(candidate, now, random())
            else:
                self.gateways.failed(candidate, attempt.error, now, random())
                self._tell(attempt, outcome.winner)
                failed.add(candidate.gateway)
        return failed

    def _tell(self, attempt: Attempt[Step, Any], winner: Attempt[Step, Any] | None) -> None:
        """Where another address has won, nobody would hear of this one's failure."""
        if winner is None:
            return
        candidate, elsewhere = attempt.candidate.candidate, winner.candidate.candidate
        words = str(attempt.error or f"{candidate} did not answer in time")
        if not isinstance(attempt.error, CertificateError):
            logger.info("gateway %s: %s is used instead: %s", candidate.gateway, elsewhere, words)
        elif self._warned.get(candidate) != words:
            self._warned[candidate] = words
            logger.warning("gateway %s cannot be used, and %s is instead: %s", candidate.gateway, elsewhere, words)

    def _failure(self, errors: Sequence[TrunkError]) -> TrunkError:
        from pgtrunk.quic.connecting import unreachable

        if not errors:
            return GatewayUnreachable(f"no address of {self} is known any more")
        return unreachable(f"no address of {self} can be reached", errors)


def _info(candidate: Candidate) -> AddressInfo:
    return candidate.family, socket.SOCK_DGRAM, socket.IPPROTO_UDP, "", candidate.sockaddr
