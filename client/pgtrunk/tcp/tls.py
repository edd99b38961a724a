"""TLS of a client over TCP: the same trust as over QUIC, in a context of OpenSSL, and its errors as ours.

OpenSSL checks the chain, the dates and the name (subject alternative names, never the common name), and refuses keys
and hashes that are too weak. What a certificate is for is looked at as over QUIC. It knows no sockets.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aioquic import tls as quic_tls
from cryptography import x509

from pgtrunk.errors import CertificateError, CertificateFileError
from pgtrunk.quic.credentials import load_credentials
from pgtrunk.quic.ending import CERTIFICATE_ALERTS, certificate_hint
from pgtrunk.quic.trust import certified_names, check_purpose, expected_name, load_anchors, names_in

if TYPE_CHECKING:
    from pgtrunk.quic.client_config import ClientConfig

__all__ = ["ALPN", "TlsTerms", "certificate_error", "check_certificate", "describe", "make_terms"]

ALPN: Final = "postgresql"
"""The protocol's name in TLS, registered by PostgreSQL 17."""

_WEAK: Final = "DEFAULT:@SECLEVEL=2"
"""Refuses RSA keys below 2048 bits and signatures over SHA-1, whatever the system's own level is."""

_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_CERTIFICATE_ALERTS: Final = frozenset(alert.name for alert in CERTIFICATE_ALERTS)


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """Whom a client takes for its gateway, and as whom it comes."""

    context: ssl.SSLContext
    name: str
    """The name or address that the certificate must carry."""
    verify: bool = True
    """False trusts whoever answers."""


def make_terms(config: ClientConfig, host: str, *, now: float) -> TlsTerms:
    """The terms for the gateway at ``host``, files read; ``now`` is in seconds since 1970.

    Raises CertificateFileError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    context.set_ciphers(_WEAK)
    if config.verify:
        context.hostname_checks_common_name = False
        _trust(context, config)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.cert_file is not None:
        _present(context, config.cert_file, config.key_file or config.cert_file, now)
    return TlsTerms(context, expected_name(config.server_name or host), config.verify)


def _trust(context: ssl.SSLContext, config: ClientConfig) -> None:
    anchors = load_anchors(config.ca_file, config.ca_data)
    if anchors.cadata is not None:
        context.load_verify_locations(cadata=anchors.cadata.decode("ascii"))
    elif anchors.cafile is not None or anchors.capath is not None:
        context.load_verify_locations(anchors.cafile, anchors.capath)
    else:
        # What aioquic takes where the system has none.
        import certifi

        context.load_verify_locations(certifi.where())


def _present(context: ssl.SSLContext, cert_file: str, key_file: str, now: float) -> None:
    # First by the words of the settings; OpenSSL only says "PEM lib".
    load_credentials(cert_file, key_file, now=now, cert_setting="cert_file", key_setting="key_file")
    try:
        # The password, or OpenSSL would ask for it at the terminal if the file were replaced by an encrypted one now.
        context.load_cert_chain(cert_file, key_file, password=b"")
    except (ssl.SSLError, OSError) as exc:
        reason = describe(exc) if isinstance(exc, ssl.SSLError) else (exc.strerror or str(exc)).lower()
        raise CertificateFileError(f'cert_file "{cert_file}" cannot be used: {reason}') from exc


def describe(error: ssl.SSLError) -> str:
    """What went wrong, in OpenSSL's words without Python's brackets and places."""
    return (error.reason or str(error)).lower().replace("_", " ")


def certificate_error(error: ssl.SSLError, terms: TlsTerms, tls: ssl.SSLObject, peer: str) -> CertificateError | None:
    """The error for a failure that a certificate is to blame for, the gateway's or our own; None for all others."""
    if isinstance(error, ssl.SSLCertVerificationError):
        leaf = _unverified(tls)
        if error.verify_code in _WRONG_NAME and leaf is not None:
            return _wrong_name(leaf, terms, peer)
        reason = error.verify_message or describe(error)
        return CertificateError(f"refused the certificate of {peer}: {reason}{certificate_hint(reason)}")
    _, is_alert, alert = (error.reason or "").lower().partition("alert_")
    if is_alert and alert in _CERTIFICATE_ALERTS:
        return CertificateError(f"our certificate was refused by {peer}: TLS alert {alert}")
    return None


def check_certificate(terms: TlsTerms, tls: ssl.SSLObject, peer: str) -> None:
    """Looks at what the gateway's certificate is for, once the handshake is over. Raises CertificateError."""
    der = tls.getpeercert(binary_form=True)
    if not terms.verify or der is None:
        return
    try:
        check_purpose(x509.load_der_x509_certificate(der))
    except ValueError as exc:
        raise CertificateError(f"refused the certificate of {peer}: it cannot be parsed") from exc
    except quic_tls.Alert as exc:
        raise CertificateError(f"refused the certificate of {peer}: {exc}") from exc


def _wrong_name(leaf: x509.Certificate, terms: TlsTerms, peer: str) -> CertificateError:
    return CertificateError(
        f"refused the certificate of {peer}: it {names_in(leaf)}, not for {terms.name!r}",
        presented=certified_names(leaf),
        expected=terms.name,
    )


def _unverified(tls: ssl.SSLObject) -> x509.Certificate | None:
    """The certificate that was refused. `SSLObject` itself gives it from Python 3.13 on."""
    inner = getattr(tls, "_sslobj", None)
    chain = inner.get_unverified_chain() if inner is not None else None
    try:
        return x509.load_der_x509_certificate(ssl.PEM_cert_to_DER_cert(chain[0].public_bytes())) if chain else None
    except ValueError:
        return None
