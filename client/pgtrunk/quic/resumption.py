"""One connection's dealings with session tickets: the one it begins with, and those that it leaves for the next.

A ticket is looked for under the gateway's name and port, and under what we go by in trusting a gateway and in showing
who we are. So a ticket that was got without looking at a certificate never opens a connection on which one is wanted,
and none outlives the certificate that we would show now.
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import replace
from ssl import CERT_NONE
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding

from .ticket_store import Kept

if TYPE_CHECKING:
    from aioquic import tls
    from aioquic.quic.configuration import QuicConfiguration

    from .ticket_store import TicketStore

__all__ = ["Resumption", "gateway_name"]

FOREVER = float(1 << 40)
"""Seconds since 1970: of a gateway whose certificate nobody looks at."""


def gateway_name(configuration: QuicConfiguration, port: int) -> str:
    """Return the name by which the tickets of a gateway are kept."""
    digest = hashlib.sha256()
    mine = configuration.certificate
    for part in (
        str(configuration.verify_mode == CERT_NONE).encode(),
        (configuration.cafile or "").encode(),
        (configuration.capath or "").encode(),
        configuration.cadata or b"",
        b"" if mine is None else mine.public_bytes(Encoding.DER),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return f"{configuration.server_name}:{port} {digest.hexdigest()[:32]}"


class Resumption:
    """Of one connection to one address."""

    def __init__(self, store: TicketStore, gateway: str, at: str, *, early: bool) -> None:
        """``early``: whether early data is wanted."""
        self._store = store
        self._gateway = gateway
        self._at = at
        self._early = early
        self._kept: Kept | None = None

    def prepare(self, configuration: QuicConfiguration, now: float) -> QuicConfiguration:
        """Return the configuration of a connection that begins now, with a ticket if there is one."""
        kept = self._kept = self._store.take(self._gateway, self._at, now)
        if kept is None:
            return configuration
        ticket = kept.ticket
        if not self._early or kept.at != self._at or self._store.is_doubted(self._gateway):
            # What another address of the gateway has promised may be true, but whether this one can be reached at all
            # is not known.
            ticket = replace(ticket, max_early_data_size=None)
        prepared = copy(configuration)
        prepared.session_ticket = ticket
        return prepared

    @property
    def alpn(self) -> str | None:
        """The protocol that early data must be in."""
        return None if self._kept is None else self._kept.alpn

    def keep(self, ticket: tls.SessionTicket, context: tls.Context, now: float) -> None:
        """A ticket came."""
        certificate = context._peer_certificate
        if context._session_resumed and self._kept is not None:
            until = self._kept.until
        elif certificate is None:
            return
        else:
            until = FOREVER if context._verify_mode == CERT_NONE else certificate.not_valid_after_utc.timestamp()
        self._store.put(self._gateway, Kept(ticket, context.alpn_negotiated or "", self._at, until), now)

    def completed(self) -> None:
        """The handshake is complete."""
        self._store.trust(self._gateway)

    def failed(self, *, heard: bool, was_early: bool, now: float) -> None:
        """There will be no connection; ``heard``: though the gateway has said something."""
        if was_early:
            self._store.doubt(self._gateway)
        if self._kept is not None and not heard:
            # Nobody has seen it who could have used it up.
            self._store.put(self._gateway, self._kept, now)
