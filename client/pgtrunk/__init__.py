"""Postgres sessions as streams over a few QUIC connections."""

from __future__ import annotations

from pgtrunk.errors import (
    AcquireTimeout,
    CertificateError,
    CertificateFileError,
    GatewayUnreachable,
    LoginTimeout,
    PgtrunkError,
    ProtocolViolation,
    SessionLost,
    TrunkClosed,
    TrunkError,
    UsageError,
)
from pgtrunk.manager import StreamManager
from pgtrunk.telemetry import TrunkStats

__all__ = [
    "StreamManager",
    "TrunkStats",
    # errors
    "AcquireTimeout",
    "CertificateError",
    "CertificateFileError",
    "GatewayUnreachable",
    "LoginTimeout",
    "PgtrunkError",
    "ProtocolViolation",
    "SessionLost",
    "TrunkClosed",
    "TrunkError",
    "UsageError",
]
