"""What `pgtrunk ping` prints: lines for people, or one JSON object. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtrunk.ping.handshake import Certificate, Handshake
    from pgtrunk.ping.login import Login

__all__ = ["Report", "Trips"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """Round trips to the first row, over one connection."""

    handshake: int
    login: Login

    @property
    def total(self) -> int:
        return self.handshake + self.login.login_trips + self.login.query_trips

    def line(self, name: str) -> str:
        parts = f"handshake {self.handshake} + login {self.login.login_trips} + query {self.login.query_trips}"
        return f"  {name + ':':<9} {self.total} ({parts}), {_ms(self.login.seconds)} from the login's first octet"


@dataclass(slots=True, kw_only=True)
class Report:
    """All that was found out; what was not asked for is None or empty."""

    gateway: str
    full: Handshake | None = None
    resumed: Handshake | None = None
    round_trips: list[float | None] = field(default_factory=list)
    """Seconds of each PING; None: not acknowledged in time."""
    protocol: str | None = None
    """Of Postgres, where 3.2 was asked for."""
    cold: Trips | None = None
    back: Trips | None = None
    """Over a connection that was resumed."""
    live: Trips | None = None
    """Over one that was open."""

    @property
    def certificate(self) -> Certificate | None:
        return None if self.full is None else self.full.certificate

    def warnings(self) -> list[str]:
        certificate = self.certificate
        if certificate is None or not certificate.expires_soon:
            return []
        return [f"the certificate expires in {certificate.days_left} days, at {certificate.expires}"]

    def head(self) -> list[str]:
        """What is known before the first PING."""
        lines = []
        if (full := self.full) is not None:
            lines = [
                f"{self.gateway}: connected to {full.address} in {_ms(full.seconds)}, full handshake",
                f"  QUIC {full.quic}, {full.alpn}, {full.cipher}",
                f"  {full.streams} streams allowed, datagrams of {full.datagram} octets",
            ]
        if (shown := self.certificate) is not None:
            lines += [
                f"  certificate for {', '.join(shown.names) or 'nobody'}",
                f"  valid until {shown.expires} ({shown.days_left} days)",
                f"  issued by {shown.issuer}, SHA-256 {shown.fingerprint}",
            ]
        return lines

    def tail(self) -> list[str]:
        lines = []
        if (again := self.resumed) is not None:
            how = "resumed by a ticket" if again.resumed else "in full again: the gateway gave no ticket that it takes"
            lines.append(f"  second connection in {_ms(again.seconds)}, {how}")
        if (known := [each for each in self.round_trips if each is not None]) or self.round_trips:
            lost = len(self.round_trips) - len(known)
            lines.append(
                f"  {len(self.round_trips)} pings, {len(known)} answered, {100 * lost // len(self.round_trips)} % lost"
            )
            if known:
                low, mean, high = min(known), sum(known) / len(known), max(known)
                lines.append(f"  rtt min/avg/max = {_ms(low)[:-3]}/{_ms(mean)[:-3]}/{_ms(high)[:-3]} ms")
        if self.cold is not None:
            lines.append(f"  login by {self.cold.login.method}; Postgres protocol {self.protocol} (3.2 was asked for)")
            lines.append("  round trips to the first row:")
            for name, trips in (("cold", self.cold), ("resumed", self.back), ("live", self.live)):
                if trips is not None:
                    lines.append("  " + trips.line(name))
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "warnings": self.warnings(),
            "trips": {
                name: trips.total
                for name, trips in (("cold", self.cold), ("resumed", self.back), ("live", self.live))
                if trips is not None
            },
        }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
