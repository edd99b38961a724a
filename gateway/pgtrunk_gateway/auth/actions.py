"""What a login asks of its session, as values: see :mod:`~pgtrunk_gateway.auth.login`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pgtrunk_gateway.auth.scram import Derivation, ScramKeys
    from pgtrunk_gateway.auth.secret import Secret
    from pgtrunk_gateway.errors import GatewayError

__all__ = [
    "Accepted",
    "Action",
    "Derive",
    "LookUp",
    "Refused",
    "SendCleartext",
    "SendMD5",
    "SendSasl",
    "SendSaslContinue",
    "SendSaslFinal",
]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask auth_query for the user, and give what it knows to `Login.found`."""


@dataclass(frozen=True, slots=True)
class SendCleartext:
    """Send AuthenticationCleartextPassword."""


@dataclass(frozen=True, slots=True)
class SendMD5:
    """Send AuthenticationMD5Password."""

    salt: bytes


@dataclass(frozen=True, slots=True)
class SendSasl:
    """Send AuthenticationSASL."""

    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendSaslContinue:
    """Send AuthenticationSASLContinue."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SendSaslFinal:
    """Send AuthenticationSASLFinal."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Derive:
    """Run the derivation in an executor, or find it in the cache, and give the result to `Login.derived`.

    There may be several: their results are to be given in the same order.
    """

    derivation: Derivation


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is `user`."""

    user: str
    secret: Secret | None = field(default=None, repr=False)
    """The user's present secret, None where it has none or none was looked for."""
    keys: ScramKeys | None = field(default=None, repr=False)
    """What logs in at a Postgres that stores the same `secret`; None unless the client has shown that it knows the
    password behind it, and it is a SCRAM secret."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Send the error and close. An `AuthenticationFailed` is to be counted by the limiter."""

    error: GatewayError


Action: TypeAlias = (
    LookUp | SendCleartext | SendMD5 | SendSasl | SendSaslContinue | SendSaslFinal | Derive | Accepted | Refused
)
