"""Postgres sessions as streams over a few QUIC connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.errors import (
    AcquireTimeout,
    CertificateError,
    CertificateFileError,
    GatewayUnreachable,
    LoginRefused,
    LoginTimeout,
    PgtrunkError,
    ProtocolViolation,
    SessionLost,
    TrunkClosed,
    TrunkError,
    TrunkFull,
    UdpBlocked,
    UsageError,
)
from pgtrunk.manager import StreamManager
from pgtrunk.retries import retry_safe
from pgtrunk.stages import Stages, Timing
from pgtrunk.telemetry import PathStats, RedundancyStats, TrunkStats

if TYPE_CHECKING:
    from pgtrunk.background import BackgroundTrunk

__all__ = [
    "BackgroundTrunk",
    "PathStats",
    "RedundancyStats",
    "Stages",
    "StreamManager",
    "Timing",
    "TrunkStats",
    "retry_safe",
    # errors
    "AcquireTimeout",
    "CertificateError",
    "CertificateFileError",
    "GatewayUnreachable",
    "LoginRefused",
    "LoginTimeout",
    "PgtrunkError",
    "ProtocolViolation",
    "SessionLost",
    "TrunkClosed",
    "TrunkError",
    "TrunkFull",
    "UdpBlocked",
    "UsageError",
]


if not TYPE_CHECKING:  # or a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        # What it needs beyond the rest, threads and temporary folders, is imported by those who use it.
        if name == "BackgroundTrunk":
            from pgtrunk.background import BackgroundTrunk

            return BackgroundTrunk
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
