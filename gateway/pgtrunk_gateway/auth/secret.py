"""The secrets that the gateway may hold of a user, as typed values.

They come from auth_file and auth_query, and are told apart as PostgreSQL does for pg_authid.rolpassword.
No value here shows itself in a repr: reprs reach logs.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import TypeAlias

from pgtrunk_gateway.errors import ConfigError

__all__ = ["KEY_LENGTH", "MD5", "Plain", "ScramSecret", "Secret", "parse_secret"]

KEY_LENGTH = 32
"""Octets of a SHA-256 digest, and so of each SCRAM key."""
_MAX_ITERATIONS = 2**31 - 1
"""What fits PostgreSQL's `scram_iterations`."""

_MD5 = re.compile(r"md5[0-9a-f]{32}")
_SCRAM_PREFIX = "SCRAM-SHA-256$"
_SCRAM = re.compile(r"SCRAM-SHA-256\$([0-9]{1,10}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class Plain:
    """A password in clear. Octets that are no UTF-8 are kept as surrogates; an empty one lets nobody in."""

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MD5:
    """`md5` and 32 hex digits: md5(password + user). It cannot serve a SCRAM login."""

    digest: str = field(repr=False)

    @classmethod
    def of(cls, user: str, password: str) -> MD5:
        """What PostgreSQL stores of `password`."""
        return cls("md5" + _hexdigest((password + user).encode("utf-8", "surrogateescape")))

    def answer(self, salt: bytes) -> bytes:
        """What the client must say to AuthenticationMD5Password with this `salt`."""
        return b"md5" + _hexdigest(self.digest[3:].encode() + salt).encode()


@dataclass(frozen=True, slots=True)
class ScramSecret:
    """What RFC 5803 keeps of a password: enough to verify a login, not enough to make one."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def encode(self) -> str:
        """As in rolpassword: `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`."""
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{_SCRAM_PREFIX}{self.iterations}:{salt}${stored}:{server}"


Secret: TypeAlias = Plain | MD5 | ScramSecret


def _hexdigest(data: bytes) -> str:
    # Where OpenSSL forbids MD5 for security this must go on: what the protocol asks for is not ours to choose.
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def parse_secret(text: str) -> Secret:
    """The secret that `text` is, told apart as PostgreSQL does.

    One departure: what begins with `SCRAM-SHA-256$` and is malformed raises `ConfigError`. PostgreSQL and PgBouncer
    take it for a password in clear: a typing error would make a secret that was never meant to be usable a password.
    """
    if _MD5.fullmatch(text):
        return MD5(text)
    if text.startswith(_SCRAM_PREFIX):
        return _parse_scram(text)
    return Plain(text)


def _parse_scram(text: str) -> ScramSecret:
    match = _SCRAM.fullmatch(text)
    if match is None:
        raise ConfigError(
            "malformed SCRAM secret: it must be SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>"
        )
    iterations = int(match[1])
    if not 1 <= iterations <= _MAX_ITERATIONS:
        raise ConfigError(f"malformed SCRAM secret: {iterations} iterations; it must be from 1 to {_MAX_ITERATIONS}")
    try:
        salt, stored, server = (base64.b64decode(part, validate=True) for part in match.groups()[1:])
    except ValueError:
        raise ConfigError("malformed SCRAM secret: salt and keys must be base64") from None
    if len(stored) != KEY_LENGTH or len(server) != KEY_LENGTH or not salt:
        raise ConfigError(f"malformed SCRAM secret: each of its two keys must have {KEY_LENGTH} octets")
    return ScramSecret(iterations, salt, stored, server)
