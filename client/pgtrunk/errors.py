"""One tree of errors. Each class carries the SQLSTATE that stands for it on the wire.

Messages are lower case, say what happened, which setting with which value decided it, and what to do.
"""

from __future__ import annotations

__all__ = [
    "AcquireTimeout",
    "CertificateError",
    "CertificateFileError",
    "GatewayUnreachable",
    "LoginTimeout",
    "PgtrunkError",
    "ProtocolViolation",
    "SessionLost",
    "TrunkClosed",
    "UnsupportedProtocol",
    "UsageError",
]


class PgtrunkError(Exception):
    """Base of everything that pgtrunk raises on purpose."""

    sqlstate = "XX000"


class UsageError(PgtrunkError, ValueError):
    """The caller asked for something that cannot be: a bad argument, a second loop, a use after fork."""

    sqlstate = "22023"


class CertificateFileError(PgtrunkError):
    """A certificate, a key or a set of CAs could not be loaded. The message names the setting and the file."""

    sqlstate = "F0000"
    setting: str | None = None
    """Whose file it is; None where no setting is to blame."""


class ProtocolViolation(PgtrunkError):
    """The other side broke the protocol."""

    sqlstate = "08P01"


class UnsupportedProtocol(ProtocolViolation):
    """The other side speaks another version of the protocol."""

    sqlstate = "0A000"


class TrunkError(PgtrunkError, ConnectionError):
    """Base of what can go wrong between client and gateway.

    A ``ConnectionError`` too, and so an ``OSError``: what asyncpg and applications already catch.
    """

    sqlstate = "08000"


class GatewayUnreachable(TrunkError):
    """No QUIC connection to the gateway could be made."""

    sqlstate = "08001"


class CertificateError(GatewayUnreachable):
    """The gateway's certificate was not accepted, or the gateway did not accept ours."""


class SessionLost(TrunkError):
    """A session ended because its stream or its QUIC connection did."""

    sqlstate = "08006"


class AcquireTimeout(TrunkError, TimeoutError):
    """No stream became free within ``acquire_timeout``."""

    sqlstate = "53300"


class LoginTimeout(TrunkError, TimeoutError):
    """A stream was there, but the login over it was not done within ``timeout``."""

    sqlstate = "08001"


class TrunkClosed(TrunkError):
    """The trunk was closed, or never opened."""

    sqlstate = "08003"
