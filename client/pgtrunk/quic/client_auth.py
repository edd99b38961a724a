"""Whose client certificates are accepted, and why one is not: the decision behind mutual TLS (RFC 8446 section 4.4.2).

aioquic's server asks for nothing and checks nothing, whatever its configuration says. ``server_tls`` asks; this module
decides. A certificate is accepted that leads to a configured CA, is within its dates and is meant for a client; all
else is refused with the TLS alert that names the reason. It knows no sockets, connections or clocks: the time is an
argument. That the client holds the key is not checked here but by its CertificateVerify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import NoReturn

from aioquic import tls
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, Policy, PolicyBuilder, Store, VerificationError

__all__ = ["AlertCertificateRequired", "AlertUnknownCA", "ClientAuthority", "VerifiedClient"]

MAX_CERTIFICATES = 6
"""Certificates in a client's message, its own included. More is no chain in use, and each costs us a parse."""

MIN_RSA_BITS = 2048

# The extensions of a certificate are parsed when first looked at, and these are how that fails.
_MALFORMED = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, x509.InvalidVersion)


class AlertCertificateRequired(tls.Alert):
    """The client sent no certificate, and one is needed (RFC 8446 section 4.4.2.4)."""

    description = tls.AlertDescription.certificate_required


class AlertUnknownCA(tls.Alert):
    """The client's certificate does not lead to a CA that we were given (RFC 8446 section 6.2)."""

    description = tls.AlertDescription.unknown_ca


@dataclass(frozen=True, slots=True)
class VerifiedClient:
    """A client certificate that was accepted."""

    certificate: x509.Certificate
    expires: float
    """When the first certificate of the accepted chain expires, in seconds since 1970."""


class ClientAuthority:
    """The CAs whose client certificates are accepted.

    ``fingerprint`` names the set: 32 bytes, the same for the same certificates in any order. A session ticket carries
    it, so that an identity verified against one set is never taken for one verified against another.
    """

    def __init__(self, cas: Sequence[x509.Certificate]) -> None:
        self.fingerprint = sha256(b"".join(sorted(ca.fingerprint(hashes.SHA256()) for ca in cas))).digest()
        self._policy = PolicyBuilder().store(Store(list(cas))).extension_policies(ca_policy=_CA, ee_policy=_LEAF)

    def verify(self, chain: Sequence[bytes], *, now: float) -> VerifiedClient:
        """Accepts a chain of DER certificates, the client's own first, or raises the ``tls.Alert`` to send.

        ``now`` is in seconds since 1970. An end-entity certificate without an extended key usage may be used for
        anything (RFC 5280 section 4.2.1.12), so by a client too; with one, clientAuth must be in it.
        """
        if not chain:
            raise AlertCertificateRequired("this gateway requires a client certificate (quic_client_ca_file is set)")
        if len(chain) > MAX_CERTIFICATES:
            raise tls.AlertBadCertificate(f"{len(chain)} certificates sent, at most {MAX_CERTIFICATES} are looked at")
        leaf, *others = (_parse(der) for der in chain)
        at = datetime.fromtimestamp(now, UTC)
        _check_leaf(leaf, at)
        intermediates = _usable(others)
        try:
            verified = self._policy.time(at).build_client_verifier().verify(leaf, intermediates)
        except VerificationError as exc:
            _refuse(exc, intermediates, at)
        expires = min(certificate.not_valid_after_utc for certificate in verified.chain)
        return VerifiedClient(leaf, expires.timestamp())


def _parse(der: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(der)
        # Parsed only when looked at: so all that is looked at later is looked at here.
        _ = certificate.extensions, certificate.subject, certificate.issuer
        _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except _MALFORMED as exc:
        raise tls.AlertBadCertificate("a certificate of the client cannot be parsed") from exc
    return certificate


def _check_leaf(leaf: x509.Certificate, at: datetime) -> None:
    """Raises the alert for what the client's own certificate shows by itself."""
    if leaf.version is not x509.Version.v3:
        raise tls.AlertUnsupportedCertificate("client certificate is of X.509 version 1, and 3 is needed")
    if at < leaf.not_valid_before_utc:
        raise tls.AlertCertificateExpired(f"client certificate is not valid before {leaf.not_valid_before_utc}")
    if at > leaf.not_valid_after_utc:
        raise tls.AlertCertificateExpired(f"client certificate expired at {leaf.not_valid_after_utc}")
    for extension in leaf.extensions:
        match extension.value:
            case x509.BasicConstraints(ca=True):
                raise tls.AlertUnsupportedCertificate("client certificate is that of a CA")
            case x509.ExtendedKeyUsage() as usage if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
                raise tls.AlertUnsupportedCertificate("client certificate lacks the extended key usage clientAuth")
            case x509.KeyUsage(digital_signature=False):
                raise tls.AlertUnsupportedCertificate("client certificate lacks the key usage digitalSignature")
    _check_key_size(leaf)


def _check_key_size(leaf: x509.Certificate) -> None:
    try:
        key = leaf.public_key()
    except (UnsupportedAlgorithm, ValueError) as exc:
        raise tls.AlertUnsupportedCertificate("client certificate has a key that cannot be used") from exc
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise tls.AlertBadCertificate(f"client certificate has an RSA key of {key.key_size} bits, not {MIN_RSA_BITS}")


def _usable(intermediates: Sequence[x509.Certificate]) -> list[x509.Certificate]:
    """Leaves at most one way up from any certificate.

    A set whose members could all have issued each other makes path building try every order, for a client that has
    proved nothing yet. So the first of each subject counts, and what claims to have issued itself does not.
    """
    first = {certificate.subject: certificate for certificate in reversed(intermediates)}
    return [certificate for certificate in first.values() if certificate.issuer != certificate.subject]


def _refuse(cause: VerificationError, intermediates: Sequence[x509.Certificate], at: datetime) -> NoReturn:
    for certificate in intermediates:
        if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
            raise tls.AlertCertificateExpired("an issuer of the client certificate is out of its dates") from cause
    raise AlertUnknownCA("client certificate does not lead to a CA in quic_client_ca_file") from cause


def _ca_may_sign(_policy: Policy, _ca: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("the key usage of a CA lacks keyCertSign")


def _ca_may_make_clients(_policy: Policy, _ca: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
    allowed = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usage is not None and allowed.isdisjoint(usage):
        raise ValueError("the extended key usage of a CA lacks clientAuth")


# The profile of public web sites (the default of cryptography) wants subject alternative names and key identifiers,
# which many a private CA does not write, openssl's defaults for one. So this is RFC 5280 itself. Unknown critical
# extensions and name constraints are seen to by the verifier, whatever we say.
_LEAF = ExtensionPolicy.permit_all()
_CA = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _ca_may_sign)
    .may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _ca_may_make_clients)
)
