"""The server's side of SCRAM-SHA-256 (RFC 5802, section 5): a client proves that it knows a password.

One object per login, two messages in, two out. There is no channel binding yet, so the client's flags `n` and `y` are
accepted and `p` is refused. The user name inside SCRAM is ignored, as PostgreSQL does: the startup packet has named the
user. Whether a user exists is not known here; a login that must fail is verified against a mock verifier.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from pgtrunk_gateway.auth.scram import ScramKeys, Verifier, keyed_hash, xor
from pgtrunk_gateway.auth.secret import KEY_LENGTH
from pgtrunk_gateway.errors import AuthenticationFailed, NotSupported, ProtocolError

__all__ = ["MAX_MESSAGE", "ServerExchange"]

MAX_MESSAGE = 1024
"""Octets of one SASL message from a client; PostgreSQL's PG_MAX_SASL_MESSAGE_LENGTH."""

_NONCE = rb"[\x21-\x2b\x2d-\x7e]+"
_VALUE = rb"[^,\0]*"
_CLIENT_FIRST = re.compile(rb"([ny]),,(n=%b,r=(%b)(?:,[A-Za-z]=%b)*+)" % (_VALUE, _NONCE, _VALUE))
_CLIENT_FINAL = re.compile(rb"(c=(%b),r=(%b)(?:,[A-Za-oq-z]=%b)*+),p=([A-Za-z0-9+/=]+)" % (_VALUE, _NONCE, _VALUE))
_NOT_SERVED = (
    (re.compile(rb"p="), "channel binding"),
    (re.compile(rb"[ny],a="), "an authorization identity"),
    (re.compile(rb"[ny],,m="), "a mandatory SCRAM extension"),
)


class ServerExchange:
    """The server's two messages for one login: `first`, then `final`."""

    __slots__ = ("_client_first_bare", "_flag", "_iterations", "_nonce", "_salt", "_server_first", "keys")

    def __init__(self, salt: bytes, iterations: int, *, nonce: bytes) -> None:
        self._salt = salt
        self._iterations = iterations
        self._nonce = base64.b64encode(nonce)
        self._flag = self._client_first_bare = self._server_first = b""
        self.keys: ScramKeys | None = None
        """After a login that succeeded, the client's keys: with them the gateway can log in to a Postgres that stores
        the same secret."""

    def first(self, client_first: bytes) -> bytes:
        """client-first-message -> server-first-message. `nonce` of the exchange must be fresh random octets.

        Raises `ProtocolError` for a malformed message, `NotSupported` for what the client insists on and we lack.
        """
        match = _CLIENT_FIRST.fullmatch(_checked(client_first))
        if match is None:
            raise _refusal(client_first)
        self._flag, self._client_first_bare, client_nonce = match.groups()
        # Both nonces, in order: what client-final must repeat.
        self._nonce = client_nonce + self._nonce
        salt = base64.b64encode(self._salt)
        self._server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self._iterations)
        return self._server_first

    def final(self, client_final: bytes, verifier: Verifier) -> bytes:
        """client-final-message -> server-final-message: the client has proved the password behind `verifier`.

        Raises `AuthenticationFailed` for a wrong proof, `ProtocolError` for a malformed message.
        """
        match = _CLIENT_FINAL.fullmatch(_checked(client_final))
        if match is None:
            raise ProtocolError("malformed SCRAM message", detail="The client-final-message cannot be read.")
        without_proof, binding, nonce, proof = match.groups()
        if binding != base64.b64encode(self._flag + b",,"):
            raise ProtocolError(
                "malformed SCRAM message", detail="The channel binding is not what the client announced."
            )
        if not hmac.compare_digest(nonce, self._nonce):
            raise ProtocolError("invalid SCRAM response", detail="The nonce does not match.")
        message = b",".join((self._client_first_bare, self._server_first, without_proof))
        self._verify(_decode_proof(proof), message, verifier)
        return b"v=" + base64.b64encode(keyed_hash(verifier.server_key, message))

    def _verify(self, proof: bytes, message: bytes, verifier: Verifier) -> None:
        client_key = xor(proof, keyed_hash(verifier.stored_key, message))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
            raise AuthenticationFailed
        self.keys = ScramKeys(client_key, verifier.server_key)


def _checked(message: bytes) -> bytes:
    if len(message) > MAX_MESSAGE:
        raise ProtocolError(
            "malformed SCRAM message", detail=f"It has {len(message)} octets; at most {MAX_MESSAGE} are possible."
        )
    return message


def _refusal(client_first: bytes) -> ProtocolError | NotSupported:
    for pattern, what in _NOT_SERVED:
        if pattern.match(client_first):
            return NotSupported(f"client requires {what}, but it is not supported", severity="FATAL")
    return ProtocolError("malformed SCRAM message", detail="The client-first-message cannot be read.")


def _decode_proof(encoded: bytes) -> bytes:
    try:
        proof = base64.b64decode(encoded, validate=True)
    except ValueError:
        proof = b""
    if len(proof) != KEY_LENGTH:
        raise ProtocolError("malformed SCRAM message", detail=f"The proof must be {KEY_LENGTH} octets in base64.")
    return proof
