"""What can be wrong where TCP is answered, beyond a certificate."""

from __future__ import annotations

from pgtrunk.errors import GatewayUnreachable

__all__ = ["NotDirect", "TlsFailed", "TlsNotOffered"]


class TlsFailed(GatewayUnreachable):
    """Somebody answers over TCP, but there is no TLS with him."""


class TlsNotOffered(TlsFailed):
    """It is a gateway, or something else that speaks Postgres's protocol, and it has no TLS."""


class NotDirect(TlsFailed):
    """The handshake failed that began without SSLRequest: it may be that the gateway wants to be asked."""
