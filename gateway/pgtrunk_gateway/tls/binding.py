"""Channel binding of the type tls-server-end-point (RFC 5929, section 4.1): a hash of the server's certificate."""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

__all__ = ["end_point"]

_TOO_WEAK = ("md5", "sha1")


def end_point(der: bytes) -> bytes | None:
    """The binding for a server certificate in DER; None where its signature uses no hash that the RFC knows.

    The hash is that of the certificate's signature, SHA-256 in place of MD5 and SHA-1; an Ed25519 signature has none.
    """
    try:
        algorithm = x509.load_der_x509_certificate(der).signature_hash_algorithm
    except (UnsupportedAlgorithm, ValueError):
        return None
    if algorithm is None:
        return None
    name = "sha256" if algorithm.name in _TOO_WEAK else algorithm.name
    return hashlib.new(name.replace("-", "_"), der).digest()
