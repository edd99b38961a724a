"""Channel binding: the hash is that of the certificate's signature, but never MD5 or SHA-1."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from pgtrunk_gateway.tls import end_point


def certificate(key: Any, algorithm: Any) -> bytes:
    name = x509.Name([])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now)
    return builder.not_valid_after(now + timedelta(days=1)).sign(key, algorithm).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (hashes.SHA256(), hashlib.sha256),
        (hashes.SHA384(), hashlib.sha384),
        (hashes.SHA512(), hashlib.sha512),
        (hashes.SHA3_256(), hashlib.sha3_256),
    ],
)
def test_the_hash_of_the_signature(algorithm: Any, expected: Any) -> None:
    der = certificate(ec.generate_private_key(ec.SECP256R1()), algorithm)
    assert end_point(der) == expected(der).digest()


def test_sha1_becomes_sha256(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        signature_hash_algorithm = hashes.SHA1()

    monkeypatch.setattr(x509, "load_der_x509_certificate", lambda _: Old)
    assert end_point(b"old") == hashlib.sha256(b"old").digest()


def test_a_signature_without_a_hash_binds_nothing() -> None:
    assert end_point(certificate(ed25519.Ed25519PrivateKey.generate(), None)) is None
    assert end_point(b"no certificate") is None
