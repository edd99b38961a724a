"""Certificates for tests: right ones, and each kind of wrong one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
Extensions = tuple[tuple[x509.ExtensionType, bool], ...]

IS_CA: Extensions = ((x509.BasicConstraints(ca=True, path_length=None), True),)


@dataclass(frozen=True)
class Identity:
    """A certificate, its key, and the certificates between it and its root."""

    certificate: x509.Certificate
    key: Key
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in (self.certificate, *self.chain))

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def save(self, folder: Path, name: str) -> tuple[str, str]:
        """Writes ``name.pem`` and ``name.key``, and returns both paths."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.pem)
        key.write_bytes(self.key_pem)
        return str(certificate), str(key)

    def issue(
        self,
        name: str,
        *extensions: tuple[x509.ExtensionType, bool],
        usage: Sequence[x509.ObjectIdentifier] | None = (CLIENT_AUTH,),
        names: Sequence[str] = (),
        days: tuple[float, float] = (-1, 30),
        key: Key | None = None,
    ) -> Identity:
        """Makes a certificate that this one has signed; ``days`` is its validity, counted from now."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        purpose: Extensions = ((x509.ExtendedKeyUsage(usage), False),) if usage is not None else ()
        alternatives: Extensions = ((_names(names), False),) if names else ()
        certificate = _sign(name, key, self.certificate.subject, self.key, (*extensions, *purpose, *alternatives), days)
        is_root = self.certificate.issuer == self.certificate.subject
        return Identity(certificate, key, () if is_root else (self.certificate, *self.chain))


def self_signed(
    name: str,
    *extensions: tuple[x509.ExtensionType, bool],
    days: tuple[float, float] = (-1, 30),
    key: Key | None = None,
) -> Identity:
    key = key or ec.generate_private_key(ec.SECP256R1())
    return Identity(_sign(name, key, _subject(name), key, extensions, days), key)


def authority(name: str = "test CA", days: tuple[float, float] = (-1, 30), key: Key | None = None) -> Identity:
    return self_signed(name, *IS_CA, days=days, key=key)


def _sign(
    name: str,
    key: Key,
    issuer: x509.Name,
    issuer_key: Key,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    days: tuple[float, float],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_general_name(name) for name in names])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
