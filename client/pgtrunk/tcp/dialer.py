"""Dials over TCP as over QUIC: the same gateways, names and races, but what is won is a carrier and its first line.

Which addresses answer over TCP is known apart from which do over UDP, and so is how TLS begins there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pgtrunk.dialer import Dialer
from pgtrunk.errors import TrunkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgtrunk.address import Address
    from pgtrunk.connection import Connection
    from pgtrunk.gateways import Candidate
    from pgtrunk.quic.client_config import ClientConfig
    from pgtrunk.quic.racing import Entrant
    from pgtrunk.tcp.cap import Cap
    from pgtrunk.tcp.opening import LineAttempt

__all__ = ["Knocker", "TcpDialer"]


class TcpDialer(Dialer):
    """Opens the carriers of one trunk."""

    def __init__(
        self, addresses: Sequence[Address], config: ClientConfig, cap: Cap, *, timeout: float, spreads: bool = True
    ) -> None:
        super().__init__(addresses, config, timeout=timeout, spreads=spreads)
        self.cap = cap
        self._asked: set[tuple[Any, ...]] = set()
        """The socket addresses where TLS begins with SSLRequest."""

    def check(self) -> None:
        from pgtrunk.tcp.tls import make_terms

        for address in self.gateways.addresses:
            make_terms(self._config, address.host, now=time.time())

    async def dial(
        self, at: Address | None = None, *, deadline: float | None = None, begun: list[Entrant] | None = None
    ) -> Connection:
        spare = next((carrier for carrier in self.cap.carriers if carrier.leave is None), None)
        if self.cap.left == 0 and spare is not None:
            # There is room for no session, so nobody has to be asked: it is the cap that callers wait for.
            return spare.twin()
        return await super().dial(at, deadline=deadline, begun=begun)

    def _entrants(self, first: Address) -> Callable[[Candidate], Any]:
        from pgtrunk.tcp.opening import LineAttempt, Place
        from pgtrunk.tcp.tls import make_terms

        now = time.time()
        terms = {first.host: make_terms(self._config, first.host, now=now)}

        def begin(candidate: Candidate) -> LineAttempt:
            host = candidate.gateway.host
            if host not in terms:
                terms[host] = make_terms(self._config, host, now=now)
            direct = candidate.sockaddr not in self._asked
            return LineAttempt(Place(candidate.family, candidate.sockaddr, terms[host], direct))

        return begin

    def _connection(self, winner: LineAttempt) -> Connection:
        from pgtrunk.tcp.carrier import TcpCarrier

        if not winner.place.direct:
            self._asked.add(winner.place.sockaddr)
        return TcpCarrier(winner.place, self.cap, self._timeout, winner.line)


class Knocker(Dialer):
    """Finds out whether anybody answers over TCP where the gateways are."""

    async def knock(self, at: Address | None, deadline: float) -> bool:
        try:
            await self.dial(at, deadline=deadline)
        except TrunkError:
            return False
        return True

    def _entrants(self, first: Address) -> Callable[[Candidate], Any]:
        from pgtrunk.tcp.opening import Knock

        return lambda candidate: Knock(candidate.family, candidate.sockaddr)
