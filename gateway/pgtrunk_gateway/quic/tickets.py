"""Session tickets without a store: all that resumption needs is sealed in the ticket (RFC 8446 section 4.6.1).

So any worker resumes what another one began. A ticket carries who the client was proved to be and by which set of
CAs; it opens only where that very set (or, without mutual TLS, none) is in force. Its life ends at the earliest of:
its own lifetime, the end of the chain that proved the client, and a day after the last full handshake, however often
it was renewed. Where it is good for early data, it carries the terms of that (early.py). Times are seconds since 1970,
since other machines read them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from pgtrunk_gateway.quic.early import Terms
from pgtrunk_gateway.quic.sealing import Sealer

if TYPE_CHECKING:
    from pgtrunk_gateway.quic.ticket_keys import TicketKeys

__all__ = ["NO_AUTHORITY", "Ticket", "Tickets"]

NO_AUTHORITY = b""
"""What a ticket carries in place of a CA set's fingerprint where clients are not asked for certificates."""

LIFETIME = 7200.0
"""Seconds for which one ticket may be used: longer than a client keeps a connection (``max_lifetime``, 3600 s), so that
what it got when that began is still good when it ends; and short enough for a change of keys."""

MAX_RENEWAL = 86400.0
"""Seconds after a full handshake for which resumption may go on, each time with a new ticket."""

MAX_SKEW = 60.0
"""Seconds by which the clock of the machine that issued a ticket may be ahead of ours."""

MAX_CERTIFICATE = 4096
"""Bytes of the largest client certificate that a ticket carries; it comes back in the first flight of the client."""

_FORMAT = 2
_HEAD = Struct(
    "!BHIQQQBBBH"
)  # format, cipher suite, age_add, issued, expires, ends (ms), sizes of the four that follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What one ticket says."""

    issued: float
    expires: float
    ends: float
    """No ticket that descends from this one is good after this time: it is set by the full handshake."""
    cipher_suite: int
    age_add: int
    secret: bytes
    """The resumption secret: whoever has it can resume, so tickets leave sealed only."""
    authority: bytes
    """Fingerprint of the CA set that the client was verified against, or ``NO_AUTHORITY``."""
    certificate: bytes | None
    """The verified client certificate, in DER, where there is an authority."""
    early: Terms | None = None
    """What early data may count on; None: it is good for none."""


class Tickets:
    """Writes and reads tickets."""

    def __init__(self, keys: Sealer | TicketKeys, *, lifetime: float = LIFETIME) -> None:
        self._keys = keys
        self._lifetime = lifetime

    def _sealer(self, now: float) -> Sealer:
        return self._keys if isinstance(self._keys, Sealer) else self._keys.at(now)

    def span(self, now: float, ends: float) -> float:
        """Seconds for which a ticket issued now may be used; nothing is left at 0 or below."""
        return min(self._lifetime, ends - now)

    def seal(self, ticket: Ticket, *, nonce: bytes) -> bytes:
        """Returns the ticket as the client gets it."""
        certificate = ticket.certificate or b""
        times = (round(seconds * 1000) for seconds in (ticket.issued, ticket.expires, ticket.ends))
        parts = (ticket.secret, ticket.authority, b"" if ticket.early is None else ticket.early.encode(), certificate)
        head = _HEAD.pack(_FORMAT, ticket.cipher_suite, ticket.age_add, *times, *map(len, parts))
        return self._sealer(ticket.issued).seal(head + b"".join(parts), nonce=nonce)

    def open(self, sealed: bytes, *, now: float, authority: bytes) -> Ticket | None:
        """Returns the ticket, or None where a full handshake is to be made.

        That is: none of ours, of an unknown format, out of its time, or issued while another set of CAs was in force.
        """
        value = self._sealer(now).open(sealed)
        if value is None or value[0] != _FORMAT:
            return None
        ticket = _parse(value)
        in_time = ticket.issued - MAX_SKEW <= now < min(ticket.expires, ticket.ends)
        return ticket if in_time and ticket.authority == authority else None


def _parse(value: bytes) -> Ticket:
    """Reads what we sealed ourselves, so its sizes are right."""
    _, cipher_suite, age_add, issued, expires, ends, *sizes = _HEAD.unpack_from(value)
    parts, at = [], _HEAD.size
    for size in sizes:
        parts.append(value[at : at + size])
        at += size
    secret, authority, early, certificate = parts
    return Ticket(
        issued=issued / 1000,
        expires=expires / 1000,
        ends=ends / 1000,
        cipher_suite=cipher_suite,
        age_add=age_add,
        secret=secret,
        authority=authority,
        certificate=certificate or None,
        early=Terms.decode(early) if early else None,
    )
