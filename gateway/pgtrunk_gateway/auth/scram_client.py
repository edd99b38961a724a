"""The client's side of SCRAM-SHA-256 (RFC 5802, section 5): the gateway logs in to Postgres, and each proves itself.

One object per login. Its expensive step is outside: `challenge` says which derivation is to be done, and `final` goes
on with its result, or with keys got otherwise. The user name in SCRAM is left empty, as libpq does: PostgreSQL goes by
the startup packet. In TLS the login is bound to the server's certificate wherever the server offers that; where it does
not, the client's flag says that it would have been able to, and a server whose offer was taken away on the way refuses.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Collection

from pgtrunk.errors import ProtocolViolation
from pgtrunk_gateway.auth.scram import (
    BINDING_TYPE,
    MAX_ITERATIONS,
    MECHANISM,
    MECHANISM_PLUS,
    Derivation,
    ScramKeys,
    keyed_hash,
    xor,
)
from pgtrunk_gateway.errors import BackendRefused

__all__ = ["MAX_MESSAGE", "ClientExchange"]

MAX_MESSAGE = 4096
"""Octets of one SCRAM message from a server."""

_SERVER_FIRST = re.compile(rb"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,10})(?:,[A-Za-z]=[^,]*)*+")
_SERVER_FINAL = re.compile(rb"([ev])=([^,]*)(?:,[A-Za-z]=[^,]*)*+")


class ClientExchange:
    """The client's messages for one login: `choose`, `first`, `challenge` or `asked`, `final`, `verify`, in this order.

    Without `choose` it is plain SCRAM-SHA-256.
    """

    __slots__ = (
        "_binding",
        "_bound",
        "_first_bare",
        "_gs2",
        "_message",
        "_nonce",
        "_server_first",
        "_server_key",
        "_server_nonce",
    )

    def __init__(self, *, nonce: bytes, channel_binding: bytes | None = None) -> None:
        """`nonce`: `NONCE_LENGTH` fresh random octets. `channel_binding`: the tls-server-end-point of the server's
        certificate; None outside of TLS."""
        self._nonce = base64.b64encode(nonce)
        self._binding = channel_binding
        self._gs2, self._bound = b"n,,", b""
        self._first_bare = b"n=,r=" + self._nonce
        self._server_first = self._server_nonce = self._message = self._server_key = b""

    def choose(self, mechanisms: Collection[str]) -> str | None:
        """The mechanism to take of those that the server offers; None where it offers none that we speak."""
        if self._binding is not None and MECHANISM_PLUS in mechanisms:
            self._gs2, self._bound = b"p=%b,," % BINDING_TYPE, self._binding
            return MECHANISM_PLUS
        self._gs2, self._bound = b"n,," if self._binding is None else b"y,,", b""
        return MECHANISM if MECHANISM in mechanisms else None

    def first(self) -> bytes:
        """client-first-message."""
        return self._gs2 + self._first_bare

    def challenge(self, server_first: bytes, password: str) -> Derivation:
        """server-first-message -> the derivation whose result `final` needs.

        Raises `ProtocolViolation` for a message that is malformed, answers another nonce, or asks for too much work.
        """
        salt, iterations = self.asked(server_first)
        if iterations > MAX_ITERATIONS:
            raise ProtocolViolation(
                f"the server asks for {iterations} SCRAM iterations; the gateway computes from 1 to {MAX_ITERATIONS}"
            )
        return Derivation(password, salt, iterations)

    def asked(self, server_first: bytes) -> tuple[bytes, int]:
        """server-first-message -> salt and iterations of the keys that `final` needs.

        Raises `ProtocolViolation` for a message that is malformed or answers another nonce.
        """
        match = _SERVER_FIRST.fullmatch(_checked(server_first))
        if match is None:
            raise ProtocolViolation("malformed SCRAM challenge from the server")
        nonce, salt, count = match.groups()
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ProtocolViolation("invalid SCRAM challenge from the server: it answers another nonce")
        iterations = int(count)
        if iterations < 1:
            raise ProtocolViolation("the server asks for 0 SCRAM iterations")
        self._server_first = server_first
        self._server_nonce = nonce
        return _decode(salt), iterations

    def final(self, keys: ScramKeys) -> bytes:
        """client-final-message."""
        without_proof = b"c=%b,r=%b" % (base64.b64encode(self._gs2 + self._bound), self._server_nonce)
        self._message = b",".join((self._first_bare, self._server_first, without_proof))
        self._server_key = keys.server_key
        proof = xor(keys.client_key, keyed_hash(keys.stored_key, self._message))
        return b"%b,p=%b" % (without_proof, base64.b64encode(proof))

    def verify(self, server_final: bytes) -> None:
        """server-final-message: returns where the server knows our secret too.

        Raises `ProtocolViolation` where it does not, `BackendRefused` where it reports an error.
        """
        match = _SERVER_FINAL.fullmatch(_checked(server_final))
        if match is None:
            raise ProtocolViolation("malformed SCRAM answer from the server")
        kind, value = match.groups()
        if kind == b"e":
            reason = value.decode("ascii", "backslashreplace")
            raise BackendRefused(f"server login failed: SCRAM error {reason}", sqlstate="28P01")
        # An empty key would sign what anyone can compute: there is none before `final`.
        if not self._message or not hmac.compare_digest(_decode(value), keyed_hash(self._server_key, self._message)):
            raise ProtocolViolation("the server could not prove that it knows the user's secret")


def _checked(message: bytes) -> bytes:
    if len(message) > MAX_MESSAGE:
        raise ProtocolViolation(
            f"SCRAM message of {len(message)} octets from the server; at most {MAX_MESSAGE} are taken"
        )
    return message


def _decode(encoded: bytes) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ProtocolViolation("malformed SCRAM message from the server: invalid base64") from None
