"""Who a gateway is, and whose clients it takes: what a listener presents to new connections, loaded from files.

It can be replaced while the listener runs. Connections that are there, and handshakes that have begun, go on with what
they began with; tickets of theirs resume as long as the CAs for clients are the same (see :mod:`.tickets`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk.quic.credentials import Credentials, load_authority, load_credentials

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

    from pgtrunk.quic.client_auth import ClientAuthority

__all__ = ["Identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its key, and the CAs of clients; None: they are asked for no certificate."""

    credentials: Credentials
    authority: ClientAuthority | None
    warnings: tuple[str, ...] = ()
    """What works, but should be looked at, a line each."""

    @classmethod
    def load(cls, cert_file: str, key_file: str, client_ca_file: str | None, *, now: float) -> Identity:
        """What the files hold; ``now`` is in seconds since 1970. Raises ``CertificateFileError``."""
        credentials = load_credentials(cert_file, key_file, now=now)
        if client_ca_file is None:
            return cls(credentials, None, credentials.warnings)
        authority = load_authority(client_ca_file, now=now)
        return cls(credentials, authority.clients, (*credentials.warnings, *authority.warnings))

    def presented_by(self, quic: QuicConfiguration) -> QuicConfiguration:
        """A copy of ``quic`` with this certificate: what has been given out already stays as it is."""
        quic = copy.copy(quic)
        quic.certificate = self.credentials.certificate
        quic.certificate_chain = list(self.credentials.chain)
        quic.private_key = self.credentials.key
        return quic
