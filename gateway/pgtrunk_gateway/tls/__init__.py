"""TLS over TCP, of clients and to Postgres: contexts from the settings, and the transport."""

from pgtrunk_gateway.tls.binding import end_point
from pgtrunk_gateway.tls.contexts import Door, ServerTls
from pgtrunk_gateway.tls.keeper import TlsKeeper
from pgtrunk_gateway.tls.transport import HandshakeError, TlsTransport

__all__ = ["Door", "HandshakeError", "ServerTls", "TlsKeeper", "TlsTransport", "end_point"]
