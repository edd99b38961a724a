"""The server's side of SCRAM-SHA-256 (RFC 5802, section 5): a client proves that it knows a password.

One object per login, two messages in, two out. The user name inside SCRAM is ignored, as PostgreSQL does: the startup
packet has named the user. Whether a user exists is not known here; a login that must fail is verified against a mock
verifier.

Channel binding (SCRAM-SHA-256-PLUS) is spoken where the session runs in TLS of ours, by the hash of our certificate:
whoever sits between, with a certificate of his own, cannot pass the client's proof on. The client's flag says what it
thinks of it, and is repeated under its proof: `n` it cannot, `y` it could but was not offered it, `p` it does. A `y`
where we did offer it means that somebody has taken the offer away, and is refused. It is not offered over QUIC: what
speaks SCRAM there, a driver over a stream, sees no TLS connection, and those that know channel binding refuse it
outside of one; nor can a sidecar's client know the certificate that its sidecar has seen.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from pgtrunk_gateway.auth.scram import (
    BINDING_TYPE,
    MECHANISM,
    MECHANISM_PLUS,
    ScramKeys,
    Verifier,
    keyed_hash,
    xor,
)
from pgtrunk_gateway.auth.secret import KEY_LENGTH
from pgtrunk_gateway.errors import AuthenticationFailed, LoginRefused, NotSupported, ProtocolError

__all__ = ["MAX_MESSAGE", "ServerExchange"]

MAX_MESSAGE = 1024
"""Octets of one SASL message from a client; PostgreSQL's PG_MAX_SASL_MESSAGE_LENGTH."""

_NONCE = rb"[\x21-\x2b\x2d-\x7e]+"
_VALUE = rb"[^,\0]*"
_CLIENT_FIRST = re.compile(rb"(([ny])|p=([A-Za-z0-9.-]+)),,(n=%b,r=(%b)(?:,[A-Za-z]=%b)*+)" % (_VALUE, _NONCE, _VALUE))
_CLIENT_FINAL = re.compile(rb"(c=(%b),r=(%b)(?:,[A-Za-oq-z]=%b)*+),p=([A-Za-z0-9+/=]+)" % (_VALUE, _NONCE, _VALUE))
_NOT_SERVED = (
    (re.compile(rb"(?:[ny]|p=[^,]+),a="), "an authorization identity"),
    (re.compile(rb"(?:[ny]|p=[^,]+),,m="), "a mandatory SCRAM extension"),
)


class ServerExchange:
    """The server's two messages for one login: `first`, then `final`."""

    __slots__ = (
        "_binding",
        "_client_first_bare",
        "_expected",
        "_iterations",
        "_nonce",
        "_salt",
        "_server_first",
        "keys",
        "proved",
    )

    def __init__(self, salt: bytes, iterations: int, *, nonce: bytes, channel_binding: bytes | None = None) -> None:
        """`nonce`: fresh random octets. `channel_binding`: the tls-server-end-point of our certificate; None outside
        of TLS, where SCRAM-SHA-256-PLUS is not offered."""
        self._salt = salt
        self._iterations = iterations
        self._nonce = base64.b64encode(nonce)
        self._binding = channel_binding
        self._client_first_bare = self._server_first = self._expected = b""
        self.keys: ScramKeys | None = None
        """After a login that succeeded, the client's keys: with them the gateway can log in to a Postgres that stores
        the same secret."""
        self.proved: Verifier | None = None
        """After a login that succeeded, whose password the client knows."""

    def first(self, client_first: bytes, *, plus: bool = False) -> bytes:
        """client-first-message -> server-first-message. `plus`: the client has chosen SCRAM-SHA-256-PLUS.

        Raises `ProtocolError` for a malformed message or a downgrade of the channel binding, `NotSupported` for what
        the client insists on and we lack.
        """
        match = _CLIENT_FIRST.fullmatch(_checked(client_first))
        if match is None:
            raise _refusal(client_first)
        flag, no_binding, binding_type, self._client_first_bare, client_nonce = match.groups()
        self._expected = flag + b",,"
        if binding_type is not None:
            self._expected += self._bound(binding_type, plus)
        elif plus:
            raise ProtocolError("malformed SCRAM message", detail=f"{MECHANISM_PLUS} without channel binding.")
        elif no_binding == b"y" and self._binding is not None:
            raise LoginRefused(
                "SCRAM channel binding negotiation error",
                detail="The client supports SCRAM channel binding but thinks the server does not. However, this server"
                " does support channel binding.",
            )
        # Both nonces, in order: what client-final must repeat.
        self._nonce = client_nonce + self._nonce
        salt = base64.b64encode(self._salt)
        self._server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self._iterations)
        return self._server_first

    def _bound(self, binding_type: bytes, plus: bool) -> bytes:
        if self._binding is None:
            raise _not_supported("channel binding")
        if not plus:
            raise ProtocolError("malformed SCRAM message", detail=f"{MECHANISM} with channel binding.")
        if binding_type != BINDING_TYPE:
            kind, known = binding_type.decode(), BINDING_TYPE.decode()
            raise ProtocolError(f'unsupported SCRAM channel-binding type "{kind}"', detail=f'Known is "{known}".')
        return self._binding

    def _unbound(self) -> ProtocolError | LoginRefused:
        if self._expected.startswith(b"p"):
            return LoginRefused(
                "SCRAM channel binding check failed", detail="The client sees another certificate than ours."
            )
        return ProtocolError("malformed SCRAM message", detail="The channel binding is not what the client announced.")

    def final(self, client_final: bytes, *verifiers: Verifier) -> bytes:
        """client-final-message -> server-final-message: the client has proved the password behind one of `verifiers`,
        which all have the salt and the iterations of this exchange.

        Raises `AuthenticationFailed` for a wrong proof, `ProtocolError` for a malformed message.
        """
        match = _CLIENT_FINAL.fullmatch(_checked(client_final))
        if match is None:
            raise ProtocolError("malformed SCRAM message", detail="The client-final-message cannot be read.")
        without_proof, binding, nonce, proof = match.groups()
        if binding != base64.b64encode(self._expected):
            raise self._unbound()
        if not hmac.compare_digest(nonce, self._nonce):
            raise ProtocolError("invalid SCRAM response", detail="The nonce does not match.")
        message = b",".join((self._client_first_bare, self._server_first, without_proof))
        decoded = _decode_proof(proof)
        for verifier in verifiers:
            client_key = xor(decoded, keyed_hash(verifier.stored_key, message))
            if hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
                self.proved = verifier
                self.keys = ScramKeys(client_key, verifier.server_key)
                return b"v=" + base64.b64encode(keyed_hash(verifier.server_key, message))
        raise AuthenticationFailed


def _checked(message: bytes) -> bytes:
    if len(message) > MAX_MESSAGE:
        raise ProtocolError(
            "malformed SCRAM message", detail=f"It has {len(message)} octets; at most {MAX_MESSAGE} are possible."
        )
    return message


def _refusal(client_first: bytes) -> ProtocolError | NotSupported:
    for pattern, what in _NOT_SERVED:
        if pattern.match(client_first):
            return _not_supported(what)
    return ProtocolError("malformed SCRAM message", detail="The client-first-message cannot be read.")


def _not_supported(what: str) -> NotSupported:
    return NotSupported(f"client requires {what}, but it is not supported", severity="FATAL")


def _decode_proof(encoded: bytes) -> bytes:
    try:
        proof = base64.b64decode(encoded, validate=True)
    except ValueError:
        proof = b""
    if len(proof) != KEY_LENGTH:
        raise ProtocolError("malformed SCRAM message", detail=f"The proof must be {KEY_LENGTH} octets in base64.")
    return proof
