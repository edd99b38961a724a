"""What is wrong with a file of certificates or a key, in words: OpenSSL only says "PEM lib". Reads files, no more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from pgtrunk_gateway.tls.settings import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["certificates", "check_key", "dated", "read"]

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"


def read(key: str, path: str) -> bytes:
    """The content of the file that ``key`` names. Raises :class:`SettingError`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise SettingError(key, f'cannot read "{path}": {getattr(error, "strerror", None) or error}') from error


def certificates(key: str, path: str) -> list[x509.Certificate]:
    """The certificates in a file, at least one. Raises :class:`SettingError`."""
    pem = read(key, path)
    if _CERTIFICATE not in pem:
        what = "it holds a private key" if _KEY in pem else "not PEM"
        raise SettingError(key, f'"{path}" holds no certificate: {what}; {_CERTIFICATE.decode()} is looked for')
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise SettingError(key, f'"{path}" holds a certificate that cannot be parsed: {error}') from error


def check_key(cert_path: str, key_path: str) -> None:
    """Raises :class:`SettingError` unless the key is that of the first certificate, and can be read without a word."""
    first, *others = certificates("cert_file", cert_path)
    pem = read("key_file", key_path)
    if _KEY not in pem:
        raise SettingError("key_file", f'"{key_path}" holds no private key')
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise SettingError(
            "key_file",
            f'"{key_path}" is encrypted, and nobody can be asked for its passphrase; decrypt it with openssl pkey',
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SettingError("key_file", f'"{key_path}" holds a private key that cannot be read: {error}') from error
    wanted = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if wanted == _public_key(first):
        return
    if any(wanted == _public_key(other) for other in others):
        raise SettingError(
            "key_file", f'"{key_path}" is the key of a certificate that is not the first in "{cert_path}"'
        )
    raise SettingError("key_file", f'"{key_path}" is not the key of the certificate in "{cert_path}"')


def dated(certificate: x509.Certificate, path: str) -> Iterator[str]:
    """A warning, where the certificate is not valid now."""
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        yield f'the certificate in "{path}" expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC'
    elif now < certificate.not_valid_before_utc:
        yield f'the certificate in "{path}" is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC'


def _public_key(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
