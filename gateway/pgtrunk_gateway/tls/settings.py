"""The client_tls_* and server_tls_* keys of one side, brought together; and what their words mean to OpenSSL. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config, DatabaseConfig, PeerConfig, SslMode

__all__ = [
    "SettingError",
    "TlsSettings",
    "client_settings",
    "parse_ciphers",
    "parse_protocols",
    "peer_settings",
    "server_settings",
]

Version = Literal[0, 1, 2, 3]
"""The minor number of TLS 1.x."""

_VERSIONS: Final[dict[str, tuple[Version, ...]]] = {
    "secure": (2, 3),
    "default": (2, 3),
    "all": (0, 1, 2, 3),
    "legacy": (0, 1, 2, 3),
    "tlsv1": (0, 1, 2, 3),
    "tlsv1.0": (0,),
    "tlsv1.1": (1,),
    "tlsv1.2": (2,),
    "tlsv1.3": (3,),
}
_OPENSSLS_OWN: Final = ("default", "secure", "fast", "normal")
_EVERY_CIPHER: Final = "ALL:!aNULL:!eNULL"
_SEPARATORS: Final = re.compile(r"[,:\s]+")


class SettingError(Exception):
    """The value of one key cannot be used. ``key`` is without its prefix: "cert_file"."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """One side's settings; for each field see the key of its name in ``Config``."""

    mode: SslMode
    cert_file: str | None
    key_file: str | None
    ca_file: str | None
    protocols: str | None
    ciphers: str | None
    ecdhcurve: str | None = None

    @property
    def verifies(self) -> bool:
        """Whether the other side must show a certificate of the CAs."""
        return self.mode in ("verify-ca", "verify-full")


def client_settings(config: Config) -> TlsSettings:
    """Of the clients' side."""
    return TlsSettings(
        mode=config.client_tls_sslmode,
        cert_file=config.client_tls_cert_file,
        key_file=config.client_tls_key_file,
        ca_file=config.client_tls_ca_file,
        protocols=config.client_tls_protocols,
        ciphers=config.client_tls_ciphers,
        ecdhcurve=config.client_tls_ecdhcurve,
    )


def server_settings(config: Config, database: DatabaseConfig | None = None) -> TlsSettings:
    """Towards Postgres: database > global. A certificate and its key come from the same place."""
    mode, ca_file = config.server_tls_sslmode, config.server_tls_ca_file
    cert_file, key_file = config.server_tls_cert_file, config.server_tls_key_file
    if database is not None:
        mode = database.server_tls_sslmode or mode
        ca_file = database.server_tls_ca_file or ca_file
        if database.server_tls_cert_file or database.server_tls_key_file:
            cert_file, key_file = database.server_tls_cert_file, database.server_tls_key_file
    return TlsSettings(
        mode=mode,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        protocols=config.server_tls_protocols,
        ciphers=config.server_tls_ciphers,
    )


def peer_settings(config: Config, peer: PeerConfig) -> TlsSettings:
    """Towards a peer: in clear, unless its entry says otherwise. What it lacks of files is the main section's."""
    cert_file, key_file = config.server_tls_cert_file, config.server_tls_key_file
    if peer.server_tls_cert_file or peer.server_tls_key_file:
        cert_file, key_file = peer.server_tls_cert_file, peer.server_tls_key_file
    return TlsSettings(
        mode=peer.server_tls_sslmode or "disable",
        cert_file=cert_file,
        key_file=key_file,
        ca_file=peer.server_tls_ca_file or config.server_tls_ca_file,
        protocols=config.server_tls_protocols,
        ciphers=config.server_tls_ciphers,
    )


def parse_protocols(text: str | None) -> tuple[Version, Version]:
    """The lowest and the highest version that are meant. Raises :class:`SettingError`."""
    chosen: set[Version] = set()
    for word in filter(None, _SEPARATORS.split((text or "secure").lower())):
        versions = _VERSIONS.get(word.removeprefix("!"))
        if versions is None:
            known = "secure, all, or a list of tlsv1.0, tlsv1.1, tlsv1.2, tlsv1.3"
            raise SettingError("protocols", f"invalid protocol {word!r}: expected {known}")
        if word.startswith("!"):
            chosen = (chosen or set(_VERSIONS["all"])) - set(versions)
        else:
            chosen |= set(versions)
    if not chosen:
        raise SettingError("protocols", "no version of TLS is left")
    low, high = min(chosen), max(chosen)
    if high - low >= len(chosen):
        raise SettingError("protocols", "versions of TLS with a gap between them, which TLS cannot negotiate")
    return low, high


def parse_ciphers(text: str | None) -> str | None:
    """The list for OpenSSL; None: its own choice."""
    word = (text or "default").lower()
    if word in _OPENSSLS_OWN:
        return None
    return _EVERY_CIPHER if word == "all" else text
