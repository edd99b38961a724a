"""Where a trunk's next connection goes, and how it is opened. The allocation says when.

Each dial resolves the names of all gateways anew and races their addresses in the order of `Gateways.plan`. It begins
as soon as the best gateway's name is resolved, or a moment after any other's; the rest join when they are.
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

from pgtrunk.errors import CertificateError, GatewayUnreachable, TrunkError
from pgtrunk.gateways import Candidate, Gateways, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pgtrunk.address import Address
    from pgtrunk.connection import Connection
    from pgtrunk.quic.client import ClientConfig
    from pgtrunk.quic.racing import Entrant, Outcome
    from pgtrunk.quic.sockets import AddressInfo

    Resolver = Callable[[str, int, float, float], Coroutine[Any, Any, Sequence[AddressInfo]]]
    """Host, port, deadline, and the timeout that it comes from."""

__all__ = ["Dialer"]

logger = logging.getLogger("pgtrunk")

RESOLUTION_DELAY: Final = 0.05
"""Seconds that the best gateway's name may take longer than another's (RFC 8305 section 8)."""


class Dialer:
    """Opens the QUIC connections of one trunk, and knows to which gateway each is."""

    def __init__(
        self, addresses: Sequence[Address], config: ClientConfig, *, timeout: float, spreads: bool = True
    ) -> None:
        self.gateways = Gateways(addresses, spreads=spreads, salt=os.urandom(16))
        self.resolve: Resolver = _resolve
        self._config = config
        self._timeout = timeout
        self._open: dict[Connection, Candidate] = {}
        self._warned: dict[Candidate, str] = {}
        """The certificates that were last said to be wrong."""

    def check(self) -> None:
        """Raises `CertificateFileError` for files that cannot be read or do not fit together, and `UsageError`."""
        for address in self.gateways.addresses:
            self._config.quic(address.host, now=time.time())

    async def dial(
        self, at: Address | None = None, *, deadline: float | None = None, begun: list[Entrant] | None = None
    ) -> Connection:
        """Opens a connection within ``connect_timeout``, or until ``deadline``; given an address, there, which a
        gateway has named. ``begun`` gets the attempts as they begin.

        Raises `GatewayUnreachable`, `CertificateError` and `CertificateFileError`. Cancelled, it leaves nothing behind.
        """
        places: dict[Address, Address | None] = dict.fromkeys(self.gateways.addresses)
        if at is not None:
            places = {self._namer(at): at}
        return await self._dial(places, deadline, [] if begun is None else begun)

    # What became of connections.

    def lost(self, connection: Connection, error: BaseException) -> None:
        """A connection has ended by itself."""
        candidate = self._open.pop(connection, None)
        if candidate is not None:
            self.gateways.failed(candidate, error, asyncio.get_running_loop().time(), random())

    def told_to_leave(self, connection: Connection) -> None:
        """A gateway asks for a connection to be left."""
        candidate = self._open.get(connection)
        if candidate is not None:
            self.gateways.spare(candidate, asyncio.get_running_loop().time())

    def counts(self) -> Counter[Candidate]:
        """How many connections are to stay, by address."""
        for connection in [each for each in self._open if not each.is_alive]:
            del self._open[connection]
        return Counter(candidate for connection, candidate in self._open.items() if connection.leave is None)

    def _namer(self, at: Address) -> Address:
        """The gateway that has named an address. It does not say by what name to know it there."""
        for connection, candidate in self._open.items():
            if connection.leave is not None and connection.leave.to == (at.host, at.port):
                return candidate.gateway
        return self.gateways.addresses[0]

    # One dial.

    async def _dial(
        self, places: dict[Address, Address | None], deadline: float | None, begun: list[Entrant]
    ) -> Connection:
        # Imported here, not above: `import pgtrunk` alone stays quick.
        from pgtrunk.quic.connecting import unreachable
        from pgtrunk.quic.racing import attempt_delay, race

        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._timeout
        begin = self._entrants(next(iter(places)))
        counts = self.counts()

        def start(step: Step) -> Any:
            begun.append(entrant := begin(step.candidate))
            return entrant

        search = _Search(self, places, deadline)
        search.begin([each for each in self.gateways.order(counts, loop.time()) if each in places])
        try:
            await search.wait_first()
            outcome = await race(
                lambda: search.next(counts),
                start,
                lambda step: 0.0 if step.is_probe else attempt_delay(step.round_trip),
                deadline=deadline,
                sources=search.tasks,
            )
        finally:
            search.end()
        self._learn(outcome)
        if outcome.winner is None:
            errors = search.errors + [attempt.error for attempt in outcome.attempts if attempt.error is not None]
            raise unreachable(f"no address of {self} can be reached", errors)
        connection = self._connection(outcome.winner.connection)
        self._open[connection] = outcome.winner.candidate.candidate
        return connection

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

    def _learn(self, outcome: Outcome[Step, Any]) -> None:
        now = outcome.ended
        for attempt in outcome.attempts:
            candidate = attempt.candidate.candidate
            if attempt is outcome.winner:
                self.gateways.reached(candidate, attempt.connection.round_trip_time)
                self._warned.pop(candidate, None)
            elif attempt.error is not None:
                self.gateways.failed(candidate, attempt.error, now, random())
                self._warn(candidate, attempt.error, outcome)
            elif attempt.connection.is_heard or now - attempt.began < attempt.delay:
                self.gateways.undecided(candidate, now, random())
            else:
                self.gateways.failed(candidate, None, now, random())

    def _warn(self, candidate: Candidate, error: TrunkError, outcome: Outcome[Step, Any]) -> None:
        """Where another address has won, nobody would hear of this one's failure."""
        if outcome.winner is None:
            return
        elsewhere = outcome.winner.candidate.candidate
        if not isinstance(error, CertificateError):
            logger.info("%s: %s is used instead: %s", candidate.gateway, elsewhere, error)
        elif self._warned.get(candidate) != str(error):
            self._warned[candidate] = str(error)
            logger.warning("%s cannot be used, and %s is instead: %s", candidate.gateway, elsewhere, error)


class _Search:
    """The addresses of one dial, as they become known."""

    def __init__(self, dialer: Dialer, places: dict[Address, Address | None], deadline: float) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        """Those that look for some."""
        self.errors: list[TrunkError] = []
        """Why there are none of a gateway."""
        self._dialer = dialer
        self._places = places
        self._deadline = deadline
        self._found: dict[Candidate, None] = {}

    def begin(self, gateways: Sequence[Address]) -> None:
        """Looks for the addresses of all gateways, the best first."""
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self._resolve(each), name=f"pgtrunk resolve {each}") for each in gateways]

    async def wait_first(self) -> None:
        """Waits until there is something to begin with."""
        left: set[asyncio.Task[None]] = set(self.tasks)
        while left and not self._found:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what it raises is a fault
        if not self.tasks[0].done():
            await asyncio.wait(self.tasks[:1], timeout=RESOLUTION_DELAY)

    def next(self, counts: Counter[Candidate]) -> Step | None:
        """The best of those that are left."""
        plan = self._dialer.gateways.plan(self._found, counts, asyncio.get_running_loop().time())
        if not plan:
            return None
        del self._found[plan[0].candidate]
        return plan[0]

    def end(self) -> None:
        """Looks no further. A resolver's thread cannot be stopped, and nobody waits for it."""
        for task in self.tasks:
            task.cancel()

    async def _resolve(self, gateway: Address) -> None:
        dialer, at = self._dialer, self._places[gateway]
        place = at or gateway
        try:
            infos = await dialer.resolve(place.host, place.port, self._deadline, dialer._timeout)
        except GatewayUnreachable as exc:
            loop = asyncio.get_running_loop()
            known = dialer.gateways.unresolved(gateway, exc, loop.time(), random()) if at is None else ()
            if known:
                # A name server that is away must not take along what it had named.
                logger.info("%s: its last known addresses are used: %s", gateway, exc)
                self._found.update(dict.fromkeys(known))
            else:
                self.errors.append(exc)
            return
        candidates = [Candidate(gateway, info[0], info[4]) for info in infos]
        if at is None:
            dialer.gateways.resolved(gateway, candidates)
        self._found.update(dict.fromkeys(candidates))


async def _resolve(host: str, port: int, deadline: float, timeout: float) -> Sequence[AddressInfo]:
    from pgtrunk.quic.resolving import resolve

    return await resolve(host, port, deadline, timeout)


def _info(candidate: Candidate) -> AddressInfo:
    return candidate.family, socket.SOCK_DGRAM, socket.IPPROTO_UDP, "", candidate.sockaddr
