"""Whom a client takes for its gateway: the CAs that it trusts, and what a certificate must be beyond that.

aioquic checks the signature over the handshake, the dates, the name (DNS or IP subject alternative names, never the
common name) and the chain. It does not look at what a certificate is for, so that any client's certificate of the same
CA could play the gateway; nor at weak keys and hashes. That is done here. It reads files, knows no sockets and no
connections.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aioquic import tls
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from pgtrunk.errors import CertificateFileError, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from aioquic._buffer import Buffer

__all__ = ["ClientContext", "TrustAnchors", "expected_name", "load_anchors"]

MIN_RSA_BITS = 2048
SERVER_USES = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
GROUPS: Final = (tls.Group.X25519, tls.Group.SECP256R1)
"""What keys are exchanged with, the first where the gateway has it. A client makes a key of each that it offers:
aioquic's four are most of what a first message costs, and as many octets as a login has."""


@dataclass(frozen=True, slots=True)
class TrustAnchors:
    """Where aioquic finds the CAs; all None stands for certifi's."""

    cadata: bytes | None = None
    cafile: str | None = None
    capath: str | None = None


def load_anchors(ca_file: str | None, ca_data: bytes | None) -> TrustAnchors:
    """Return the given CAs, PEM, or the system's where none are. Raises CertificateFileError that names the setting.

    Read here and now: aioquic would read the file in the middle of a handshake, and fail there.
    """
    if ca_file is None and ca_data is None:
        return _system_anchors()
    pem = b"" if ca_data is None else _checked(ca_data, "ca_data")
    if ca_file is not None:
        try:
            with open(ca_file, "rb") as file:
                content = file.read()
        except OSError as exc:
            reason = (exc.strerror or str(exc)).lower()
            raise CertificateFileError(f'cannot read ca_file "{ca_file}": {reason}') from exc
        pem += _checked(content, f'ca_file "{ca_file}"')
    return TrustAnchors(cadata=pem)


def _checked(pem: bytes, what: str) -> bytes:
    """Return the certificates in ``pem``, without what stands around them: aioquic takes none of that."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError as exc:
        raise CertificateFileError(f"{what} holds no certificate that can be read; PEM is expected") from exc
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _system_anchors() -> TrustAnchors:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None or paths.capath is not None:
        return TrustAnchors(cafile=paths.cafile, capath=paths.capath)
    if os.name == "nt":
        found = ssl.create_default_context().get_ca_certs(binary_form=True)
        if found:
            return TrustAnchors(cadata="".join(map(ssl.DER_cert_to_PEM_cert, found)).encode())
    return TrustAnchors()


def expected_name(host: str) -> str:
    """Return the name that a certificate must carry for ``host``: ASCII, no trailing dot, no IPv6 zone."""
    name = host.partition("%")[0].rstrip(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        ascii_name = name.encode("idna").decode("ascii")
    except UnicodeError as exc:
        raise UsageError(f"{host!r} is not a host name: {exc}") from exc
    if not ascii_name:
        raise UsageError(f"{host!r} is not a host name: it is empty")
    return ascii_name


class ClientContext(tls.Context):
    """A client's handshake that also asks what the gateway's certificate is for."""

    @classmethod
    def replace(cls, stock: tls.Context) -> ClientContext:
        """Take over from ``stock``, a context that has not sent a message yet."""
        context = cls.__new__(cls)
        context.__dict__.update(stock.__dict__)
        context._supported_groups = [group for group in GROUPS if group in stock._supported_groups]
        return context

    def _client_handle_certificate_verify(self, input_buf: Buffer) -> None:
        leaf = self._peer_certificate
        try:
            super()._client_handle_certificate_verify(input_buf)
        except tls.AlertBadCertificate as exc:
            # The name is checked by service_identity, whose error aioquic passes on with a list of its patterns' reprs.
            if leaf is None or not type(exc.__cause__).__module__.startswith("service_identity"):
                raise
            raise tls.AlertBadCertificate(f"it {names_in(leaf)}, not for {self._server_name!r}") from exc
        except tls.AlertCertificateExpired as exc:
            if leaf is None:
                raise
            raise tls.AlertCertificateExpired(_out_of_dates(leaf, tls.utcnow())) from exc
        if self._verify_mode != ssl.CERT_NONE and leaf is not None:
            check_purpose(leaf)
            check_strength(leaf, self._peer_certificate_chain)


def _out_of_dates(leaf: x509.Certificate, now: datetime) -> str:
    if now < leaf.not_valid_before_utc:
        return (
            f"it is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC; is this machine's clock right?"
        )
    return f"it is no longer valid: it expired at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"


def certified_names(leaf: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses that a certificate is for."""
    try:
        extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return ()
    return tuple(str(name.value) for name in extension.value if isinstance(name, (x509.DNSName, x509.IPAddress)))


def names_in(leaf: x509.Certificate) -> str:
    """Return whom a certificate is for, in words."""
    names = certified_names(leaf)
    return "is for " + ", ".join(names) if names else "names nobody"


def check_purpose(leaf: x509.Certificate) -> None:
    """Raise the alert for a certificate that is not meant for a server (RFC 5280 sections 4.2.1.3 and 4.2.1.12)."""
    try:
        values = [extension.value for extension in leaf.extensions]
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as exc:
        raise tls.AlertBadCertificate("the certificate has an extension that cannot be parsed") from exc
    for value in values:
        if isinstance(value, x509.ExtendedKeyUsage) and not SERVER_USES.intersection(value):
            raise tls.AlertUnsupportedCertificate("the certificate's extended key usage lacks serverAuth")
        if isinstance(value, x509.KeyUsage) and not value.digital_signature:
            raise tls.AlertUnsupportedCertificate("the certificate's key usage lacks digitalSignature")


def check_strength(leaf: x509.Certificate, chain: list[x509.Certificate]) -> None:
    """Raise the alert for RSA keys below 2048 bits, and for signatures over MD5 or SHA-1 below the root."""
    for certificate in (leaf, *chain):
        try:
            key, digest = certificate.public_key(), certificate.signature_hash_algorithm
        except (UnsupportedAlgorithm, ValueError) as exc:
            raise tls.AlertUnsupportedCertificate("the certificate has a key or signature that is not known") from exc
        if isinstance(key, rsa.RSAPublicKey) and key.key_size < MIN_RSA_BITS:
            raise tls.AlertBadCertificate(f"an RSA key of {key.key_size} bits is too weak; {MIN_RSA_BITS} are wanted")
        if isinstance(digest, (hashes.MD5, hashes.SHA1)) and certificate.issuer != certificate.subject:
            raise tls.AlertBadCertificate(f"a signature over {digest.name} is too weak")
