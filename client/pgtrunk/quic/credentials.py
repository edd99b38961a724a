"""The gateway's certificate, its key and its clients' CAs, read from files.

Whatever is wrong with a file is a ``CertificateFileError`` that names the setting, the file and the way out; what
works today but will trouble somebody is a warning of one line, for the caller to log. Reads files, nothing else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from pgtrunk.errors import CertificateFileError
from pgtrunk.quic.client_auth import ClientAuthority

__all__ = ["Authority", "Credentials", "PrivateKey", "load_authority", "load_credentials"]

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
"""Kinds of key that TLS 1.3 can sign with here; of the curves, P-256 and P-384."""

MAX_CHAIN = 12 << 10
"""Bytes of certificates that one handshake message has room for: aioquic sets 16 KiB aside for the whole flight."""

_CURVES = (ec.SECP256R1, ec.SECP384R1)
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate, what lies between it and its root, and its key."""

    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    key: PrivateKey
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """The CAs whose client certificates are accepted, as loaded."""

    clients: ClientAuthority
    warnings: tuple[str, ...] = ()


def load_credentials(
    cert_file: str,
    key_file: str,
    *,
    now: float,
    cert_setting: str = "quic_cert_file",
    key_setting: str = "quic_key_file",
) -> Credentials:
    """Returns what the two files hold; ``now`` is in seconds since 1970. Raises ``CertificateFileError``."""
    cert, key = f'{cert_setting} "{cert_file}"', f'{key_setting} "{key_file}"'
    with _blaming(cert_setting):
        certificate, *chain = _certificates(cert_file, cert, other=key_setting)
        _check_size(cert, [certificate, *chain])
    with _blaming(key_setting):
        private = _private_key(key_file, key)
        _match(cert, certificate, chain, key, private)
    warnings = [*_dates(cert, certificate, now), *_purpose(cert, certificate), *_open_to_all(key_file, key)]
    return Credentials(certificate, tuple(chain), private, tuple(warnings))


def load_authority(ca_file: str, *, now: float, setting: str = "quic_client_ca_file") -> Authority:
    """Returns the CAs that the file holds; ``now`` is in seconds since 1970. Raises ``CertificateFileError``."""
    what = f'{setting} "{ca_file}"'
    with _blaming(setting):
        cas = _certificates(ca_file, what, other="none")
    return Authority(ClientAuthority(cas), tuple(warning for ca in cas for warning in _dates(what, ca, now)))


@contextmanager
def _blaming(setting: str) -> Iterator[None]:
    try:
        yield
    except CertificateFileError as error:
        error.setting = setting
        raise


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as exc:
        raise CertificateFileError(f"cannot read {what}: {(exc.strerror or str(exc)).lower()}") from exc


def _certificates(path: str, what: str, *, other: str) -> list[x509.Certificate]:
    pem = _read(path, what)
    if _CERTIFICATE not in pem:
        hint = f"it holds a private key, which belongs in {other}" if b"PRIVATE KEY-----" in pem else "not PEM"
        raise CertificateFileError(f"{what} holds no certificate: {hint}; {_CERTIFICATE.decode()} is looked for")
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as exc:
        raise CertificateFileError(f"{what} holds a certificate that cannot be parsed: {_brief(exc)}") from exc


def _check_size(what: str, chain: list[x509.Certificate]) -> None:
    size = sum(len(certificate.public_bytes(Encoding.DER)) for certificate in chain)
    if size > MAX_CHAIN:
        raise CertificateFileError(
            f"{what} holds {len(chain)} certificates of {size} bytes, and {MAX_CHAIN} fit into a handshake; "
            "leave out the root, and all that is not between it and the gateway's own"
        )


def _private_key(path: str, what: str) -> PrivateKey:
    pem = _read(path, what)
    if b"PRIVATE KEY-----" not in pem:
        raise CertificateFileError(f"{what} holds no private key: -----BEGIN PRIVATE KEY----- is looked for")
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as exc:
        raise CertificateFileError(
            f"{what} is encrypted, and nobody can be asked for its passphrase; "
            f"decrypt it: openssl pkey -in {path} -out FILE, and keep that file to yourself (mode 0600)"
        ) from exc
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise CertificateFileError(f"{what} holds a private key that cannot be read: {_brief(exc)}") from exc
    if isinstance(key, ec.EllipticCurvePrivateKey) and not isinstance(key.curve, _CURVES):
        raise CertificateFileError(f"{what} is a key on the curve {key.curve.name}; use P-256 or P-384")
    if not isinstance(key, PrivateKey):
        raise CertificateFileError(f"{what} is a key that TLS 1.3 cannot sign with; use one on P-256, or RSA")
    return key


def _match(
    cert: str, certificate: x509.Certificate, chain: list[x509.Certificate], key: str, private: PrivateKey
) -> None:
    """Raises unless the key is the certificate's."""
    wanted = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if wanted == _public_key(certificate):
        return
    if any(wanted == _public_key(other) for other in chain):
        raise CertificateFileError(
            f"{key} belongs to a certificate that is not the first in {cert}; put the gateway's own first, "
            "then the one that issued it, and so on"
        )
    raise CertificateFileError(f"{key} is not the key of the certificate in {cert}; the two must come as a pair")


def _public_key(certificate: x509.Certificate) -> bytes | None:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return None


def _dates(what: str, certificate: x509.Certificate, now: float) -> list[str]:
    at = datetime.fromtimestamp(now, UTC)
    name = certificate.subject.rfc4514_string()
    if at > certificate.not_valid_after_utc:
        return [f"{what}: the certificate of {name} expired at {certificate.not_valid_after_utc}; nobody accepts it"]
    if at < certificate.not_valid_before_utc:
        return [f"{what}: the certificate of {name} is not valid before {certificate.not_valid_before_utc}"]
    return []


def _purpose(what: str, certificate: x509.Certificate) -> list[str]:
    """Warns of what makes clients refuse a server's certificate."""
    try:
        found = {type(extension.value): extension.value for extension in certificate.extensions}
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as exc:
        raise CertificateFileError(f"{what} holds a certificate with a broken extension: {_brief(exc)}") from exc
    warnings = []
    usage = found.get(x509.ExtendedKeyUsage)
    if isinstance(usage, x509.ExtendedKeyUsage) and ExtendedKeyUsageOID.SERVER_AUTH not in usage:
        warnings.append(f"{what}: its extended key usage lacks serverAuth, so many clients refuse it")
    if x509.SubjectAlternativeName not in found:
        warnings.append(f"{what}: it has no subject alternative name, so clients that check names refuse it")
    return warnings


def _open_to_all(path: str, what: str) -> list[str]:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if os.name != "posix" or not mode & stat.S_IROTH:
        return []
    return [f"{what} can be read by every user of this machine (mode {mode:04o}): chmod 600 {path}"]


def _brief(exc: Exception) -> str:
    """The first line of what a library says, short enough for a log."""
    return str(exc).partition("\n")[0][:120]
