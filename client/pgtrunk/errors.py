"""One tree of errors. Each class carries the SQLSTATE that stands for it on the wire, and whether a retry is safe.

Messages are lower case, say what happened, which setting with which value decided it, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
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
    "UnsupportedProtocol",
    "UsageError",
]


class PgtrunkError(Exception):
    """Base of everything that pgtrunk raises on purpose."""

    sqlstate = "XX000"

    retry_safe: bool = False
    """Whether nothing of what the caller asked for can have taken effect, so that asking again repeats nothing. It does
    not say that a retry will do better. False wherever there is a doubt; of other exceptions, `pgtrunk.retry_safe`
    knows."""


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
    """No connection to the gateway could be made."""

    sqlstate = "08001"
    retry_safe = True


class UdpBlocked(GatewayUnreachable):
    """Nothing came back over UDP, though the gateway's host answers over TCP: a firewall on the way lets no QUIC
    through."""


class CertificateError(GatewayUnreachable):
    """The gateway's certificate was not accepted, or the gateway did not accept ours."""

    def __init__(self, message: str = "", *, presented: Sequence[str] = (), expected: str | None = None) -> None:
        super().__init__(message)
        self.presented = tuple(presented)
        """The names and addresses that the gateway's certificate carries; empty where they do not matter."""
        self.expected = expected
        """The one that it should carry (``server_name``, or else the host); None where that does not matter."""


class LoginRefused(TrunkError):
    """The gateway, or the server behind it, did not let us in. The SQLSTATE is the one that it gave."""

    sqlstate = "28000"
    retry_safe = True


class SessionLost(TrunkError):
    """A session ended because its stream or its connection did."""

    sqlstate = "08006"

    def __init__(
        self, message: str = "", *, sent: bool = True, in_transaction: bool = False, forgotten: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_safe = not sent
        self.sent = sent
        """Whether something that the session asked for may have reached the gateway, and its answer has not come.
        Assumed, unless the opposite is known."""
        self.in_transaction = in_transaction
        """Whether it was in a transaction block: that is rolled back, and to be repeated from its beginning. Known only
        where nothing was ``sent``."""
        self.forgotten = forgotten
        """Whether the gateway itself has said that it does not know the connection: it has been started again, or has
        given the connection up, and is there."""


class AcquireTimeout(TrunkError, TimeoutError):
    """No stream became free within ``acquire_timeout``."""

    sqlstate = "53300"
    retry_safe = True


class TrunkFull(AcquireTimeout):
    """All streams that may be opened are in use, and none became free in time."""


class LoginTimeout(TrunkError, TimeoutError):
    """A stream was there, but the login over it was not done within ``timeout``."""

    sqlstate = "08001"
    retry_safe = True


class TrunkClosed(TrunkError):
    """The trunk was closed, or never opened."""

    sqlstate = "08003"
    retry_safe = True
