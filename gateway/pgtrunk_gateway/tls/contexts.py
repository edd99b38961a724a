"""Contexts of OpenSSL from the settings: :class:`Door` for clients, :class:`ServerTls` for connections to Postgres.

All that can be wrong with files and lists is found here, before the first handshake, and said with the key that is to
blame. What Python's ssl cannot set is never passed over in silence: the ciphers of TLS 1.3 are a key that is not acted
on, and reported as such. Knows nothing of lines: that is the keeper's.
"""

from __future__ import annotations

import hashlib
import ssl
import warnings as python_warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from cryptography.hazmat.primitives.serialization import Encoding

from pgtrunk_gateway.tls import files
from pgtrunk_gateway.tls.binding import end_point
from pgtrunk_gateway.tls.settings import SettingError, TlsSettings, parse_ciphers, parse_protocols

if TYPE_CHECKING:
    from cryptography import x509

    from pgtrunk_gateway.config.settings import SslMode

__all__ = ["ALPN", "Door", "ServerTls", "make_door", "make_server_tls"]

ALPN: Final = "postgresql"
"""The protocol's name in TLS, registered by PostgreSQL 17."""

_VERSIONS: Final = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@dataclass(frozen=True, slots=True)
class Door:
    """How clients may come in over TCP."""

    mode: SslMode = "disable"
    context: ssl.SSLContext | None = None
    """None with mode disable."""
    binding: bytes | None = None
    """tls-server-end-point of the gateway's own certificate, for SCRAM-SHA-256-PLUS."""
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def requires_tls(self) -> bool:
        """Whether a session without TLS is refused."""
        return self.mode in ("require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How Postgres is spoken to. Equal where settings and contents of the files are."""

    mode: SslMode
    fingerprint: bytes = field(repr=False)
    context: ssl.SSLContext = field(compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)


def make_door(settings: TlsSettings) -> Door:
    """Raises :class:`SettingError`."""
    if settings.mode == "disable":
        return Door()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # As Postgres: libpq resumes nothing, and a ticket would outlive the CA that let its owner in.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols([ALPN])
    if settings.cert_file is None or settings.key_file is None:
        missing: Literal["cert_file", "key_file"] = "cert_file" if settings.cert_file is None else "key_file"
        raise SettingError(missing, "TLS connections from clients need client_tls_key_file and client_tls_cert_file")
    if settings.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED if settings.verifies else ssl.CERT_OPTIONAL
    elif settings.verifies:
        raise SettingError("ca_file", f"not set, but client_tls_sslmode is {settings.mode}")
    warnings = _configure(context, settings)
    (own, *_) = files.certificates("cert_file", settings.cert_file)
    return Door(settings.mode, context, end_point(own.public_bytes(Encoding.DER)), warnings)


def make_server_tls(settings: TlsSettings) -> ServerTls | None:
    """None with mode disable. Raises :class:`SettingError`."""
    if settings.mode == "disable":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.mode == "verify-full"
    context.verify_mode = ssl.CERT_REQUIRED if settings.verifies else ssl.CERT_NONE
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([ALPN])
    if settings.verifies and settings.ca_file is None:
        context.set_default_verify_paths()
    if (settings.cert_file is None) != (settings.key_file is None):
        key, other = ("cert_file", "key_file") if settings.key_file is None else ("key_file", "cert_file")
        raise SettingError(key, f"set, but not server_tls_{other}: a certificate and its key come as a pair")
    warnings = _configure(context, settings)
    if settings.ca_file is not None and not settings.verifies:
        # libpq would verify with require then; PgBouncer does not, and says nothing.
        warnings += (f'ca_file "{settings.ca_file}" is not used: nothing is verified below verify-ca',)
    return ServerTls(settings.mode, _fingerprint(settings), context, warnings)


def _configure(context: ssl.SSLContext, settings: TlsSettings) -> tuple[str, ...]:
    """What is the same on both sides -> warnings."""
    warnings = _set_protocols(context, settings)
    _set_ciphers(context, settings)
    _set_curve(context, settings)
    if settings.ca_file is not None:
        warnings += [each for ca in _load_cas(context, settings.ca_file) for each in files.dated(ca, settings.ca_file)]
    if settings.cert_file is not None and settings.key_file is not None:
        _load_pair(context, settings.cert_file, settings.key_file)
        warnings += files.dated(files.certificates("cert_file", settings.cert_file)[0], settings.cert_file)
    return tuple(warnings)


def _set_protocols(context: ssl.SSLContext, settings: TlsSettings) -> list[str]:
    low, high = parse_protocols(settings.protocols)
    with python_warnings.catch_warnings():
        # That 1.0 and 1.1 are deprecated is known to those who ask for them.
        python_warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = _VERSIONS[low], _VERSIONS[high]
    if low < 2 and "@SECLEVEL=0" not in (settings.ciphers or ""):
        return ["protocols: OpenSSL offers TLS 1.0 and 1.1 only with @SECLEVEL=0 in the list of ciphers"]
    return []


def _set_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    ciphers = parse_ciphers(settings.ciphers)
    if ciphers is not None:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise SettingError("ciphers", f'invalid list "{ciphers}": OpenSSL knows none of these') from error


def _set_curve(context: ssl.SSLContext, settings: TlsSettings) -> None:
    curve = settings.ecdhcurve
    if curve is None or curve.lower() == "auto":
        return
    if curve.lower() == "none":
        raise SettingError("ecdhcurve", "ECDH cannot be switched off here: expected auto or the name of a curve")
    try:
        context.set_ecdh_curve(curve)
    except (ValueError, ssl.SSLError) as error:
        raise SettingError("ecdhcurve", f'unknown curve "{curve}": expected auto, X25519, prime256v1 ...') from error


def _load_cas(context: ssl.SSLContext, path: str) -> list[x509.Certificate]:
    cas = files.certificates("ca_file", path)
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise SettingError("ca_file", f'cannot use "{path}": {error}') from error
    return cas


def _load_pair(context: ssl.SSLContext, cert_path: str, key_path: str) -> None:
    files.check_key(cert_path, key_path)
    try:
        # The password, or OpenSSL would ask for it at the terminal if the file were replaced by an encrypted one now.
        context.load_cert_chain(cert_path, key_path, password=b"")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise SettingError("cert_file", f'cannot use "{cert_path}": {reason.lower().replace("_", " ")}') from error


def _fingerprint(settings: TlsSettings) -> bytes:
    digest = hashlib.sha256(repr(settings).encode())
    for key in ("cert_file", "key_file", "ca_file"):
        path: str | None = getattr(settings, key)
        if path is not None:
            digest.update(hashlib.sha256(files.read(key, path)).digest())
    return digest.digest()
