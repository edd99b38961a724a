"""What a client's connections are made with: limits, trust, and what they have in common."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import ALPN, QuicLimits, quic_configuration
from .credentials import load_credentials
from .redundancy import Paths
from .stages import StageMeter
from .trust import expected_name, load_anchors

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

    from .qlog import QlogFolder
    from .ticket_store import TicketStore

__all__ = ["ClientConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to reach a gateway, and whom to take for it."""

    limits: QuicLimits = field(default_factory=lambda: QuicLimits(max_streams=0))
    """Limits of each connection; its ``max_streams`` counts as 0, since a gateway opens none."""
    ca_file: str | None = None
    """PEM file of the CAs that the gateway's certificate must lead to; None and no ``ca_data``: the system's."""
    ca_data: bytes | None = None
    """The same as bytes; both together are one set."""
    server_name: str | None = None
    """Name or IP address that the certificate must carry; None: the host connected to."""
    cert_file: str | None = None
    """PEM file of our certificate and its intermediates, for gateways that ask for one."""
    key_file: str | None = None
    """PEM file of its key."""
    verify: bool = True
    """False trusts whoever answers."""
    alpn: tuple[str, ...] = ALPN
    paths: Paths = field(default_factory=Paths)
    """What all connections of this configuration know of losses on the way, by the gateway's address."""
    stages: StageMeter = field(default_factory=StageMeter)
    """What all its connections have measured, and their gateways reported, of the stages of queries."""
    timings: bool = True
    """Whether each connection measures how long its queries take."""
    tickets: TicketStore | None = None
    """What handshakes are shortened with, and where tickets for the next ones are kept; None: all are made in full."""
    qlog: QlogFolder | None = None
    """Where each connection writes a log of its packets; None: nowhere."""
    early: bool = False
    """Whether a connection whose ticket permits it is open at once, and what is written first leaves as early data."""

    def quic(self, host: str, *, now: float) -> QuicConfiguration:
        """Return aioquic's configuration, files read. ``now`` is in seconds since 1970. Raises CertificateFileError."""
        configuration = quic_configuration(self.limits, is_client=True, alpn=self.alpn)
        configuration.quic_logger = self.qlog
        configuration.server_name = expected_name(self.server_name or host)
        configuration.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.verify:
            anchors = load_anchors(self.ca_file, self.ca_data)
            configuration.load_verify_locations(anchors.cafile, anchors.capath, anchors.cadata)
        if self.cert_file is not None:
            mine = load_credentials(
                self.cert_file,
                self.key_file or self.cert_file,
                now=now,
                cert_setting="cert_file",
                key_setting="key_file",
            )
            configuration.certificate, configuration.private_key = mine.certificate, mine.key
            configuration.certificate_chain = list(mine.chain)
        return configuration
