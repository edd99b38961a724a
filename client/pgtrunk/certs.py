"""``pgtrunk certs DIR``: a development CA, a certificate for the gateway, and one for a client.

Nothing is ever overwritten: where one of the files is there already, nothing at all is written. A private key is never
readable by others, not for an instant. What it makes is for trying things out; certs/README.md says how to do better.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pgtrunk.errors import CertificateFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CertificateFiles", "create_certificates", "default_names", "register"]

CA_DAYS = 3650
BACKDATED = timedelta(hours=1)
"""How far ahead of other machines' clocks ours may be without the certificates being "not yet valid" there."""

_NAME_SIZE = 64  # of a common name, by X.520
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_KEY_MODE, _CERTIFICATE_MODE, _FOLDER_MODE = 0o600, 0o644, 0o700

Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the files of one folder are."""

    folder: Path

    @property
    def ca_cert(self) -> Path:
        """What clients check the gateway's certificate by, and the gateway its clients'."""
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """Who has this can be anybody."""
        return self.folder / "ca.key"

    @property
    def server_cert(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    @property
    def client_cert(self) -> Path:
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.folder / "client.key"


def default_names() -> list[str]:
    """Returns what this machine is called by those who run a gateway on it."""
    names = ["localhost", "127.0.0.1", "::1"]
    host = socket.gethostname()
    return [*names, host] if host not in names and _is_dns_name(host) else names


def create_certificates(
    folder: str | os.PathLike[str],
    *,
    names: Sequence[str] = (),
    days: int = 365,
    client_name: str = "app",
    now: datetime | None = None,
) -> CertificateFiles:
    """Makes a CA, a server certificate for ``names`` and a client certificate for the user ``client_name``.

    ``names`` are DNS names and IP addresses, by default ``default_names()``. The folder is made if it is not there
    (mode 0700). Raises ``UsageError`` for a name or number that cannot be, and ``CertificateFileError`` where a file
    exists already or cannot be written; then no file is left behind.
    """
    if not 1 <= days <= CA_DAYS:
        raise UsageError(f"--days is {days}: give a number from 1 to {CA_DAYS}")
    if not 1 <= len(client_name) <= _NAME_SIZE or not client_name.isprintable():
        raise UsageError(f"--client-name is {client_name!r}: give 1 to {_NAME_SIZE} printable characters")
    alternatives = [_general_name(name) for name in names or default_names()]
    files = CertificateFiles(Path(folder))
    # The lifetime of all that is made starts at one moment, so that nothing outlives its issuer.
    begin = (now or datetime.now(UTC)) - BACKDATED
    ca = _make_ca(begin)
    server = _make_server(ca, alternatives, begin, days)
    client = _make_client(ca, client_name, begin, days)
    contents = {
        files.ca_key: _key_pem(ca),
        files.ca_cert: _pem(ca),
        files.server_key: _key_pem(server),
        files.server_cert: _pem(server),
        files.client_key: _key_pem(client),
        files.client_cert: _pem(client),
    }
    _write_all(files.folder, contents)
    return files


# Making


def _make_ca(begin: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own, so that the certificates of two such CAs can be told apart.
    name = f"pgtrunk development CA {x509.random_serial_number() & 0xFFFFFFFF:08x}"
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key(), begin, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _make_server(ca: Pair, names: Sequence[x509.GeneralName], begin: datetime, days: int) -> Pair:
    # The common name is for people; clients go by the alternative names.
    name = str(names[0].value)
    extension = x509.SubjectAlternativeName(names)
    return _make_leaf(ca, name[:_NAME_SIZE], ExtendedKeyUsageOID.SERVER_AUTH, begin, days, extension)


def _make_client(ca: Pair, user: str, begin: datetime, days: int) -> Pair:
    return _make_leaf(ca, user, ExtendedKeyUsageOID.CLIENT_AUTH, begin, days)


def _make_leaf(
    ca: Pair,
    name: str,
    usage: x509.ObjectIdentifier,
    begin: datetime,
    days: int,
    *extensions: x509.ExtensionType,
) -> Pair:
    issuer, issuer_key = ca
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(name), issuer.subject, key.public_key(), begin, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    for extension in (issued_by, *extensions):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + BACKDATED + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        if not _is_dns_name(name.removeprefix("*.")):
            raise UsageError(f"--name is {name!r}: give a DNS name or an IP address, without a port") from None
        return x509.DNSName(name.lower())


def _is_dns_name(name: str) -> bool:
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


# Writing


def _pem(pair: Pair) -> bytes:
    return pair[0].public_bytes(Encoding.PEM)


def _key_pem(pair: Pair) -> bytes:
    return pair[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_all(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Writes all of the files or, where that cannot be, leaves things as they were."""
    for path in contents:
        if os.path.lexists(path):
            raise _refusal(path)
    written: list[Path] = []
    made = _make_folder(folder)
    try:
        for path, content in contents.items():
            _write_new(path, content, written)
    except OSError as exc:
        for path in written:
            path.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(exc, FileExistsError):
            raise _refusal(Path(exc.filename)) from exc
        raise CertificateFileError(f"cannot write {exc.filename}: {(exc.strerror or str(exc)).lower()}") from exc


def _refusal(path: Path) -> CertificateFileError:
    return CertificateFileError(
        f"{path} exists already, and nothing is overwritten: give another folder, or move it away"
    )


def _make_folder(folder: Path) -> bool:
    try:
        os.makedirs(folder, mode=_FOLDER_MODE)
    except FileExistsError:
        if folder.is_dir():
            return False
        raise CertificateFileError(f"{folder} is not a folder") from None
    except OSError as exc:
        raise CertificateFileError(f"cannot make the folder {folder}: {(exc.strerror or str(exc)).lower()}") from exc
    return True


def _write_new(path: Path, content: bytes, written: list[Path]) -> None:
    # Made with its final mode, and only if nothing of that name is there, not even a link that leads elsewhere: there
    # is no moment at which a key can be read by others, and none between looking and writing.
    mode = _KEY_MODE if path.suffix == ".key" else _CERTIFICATE_MODE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    written.append(path)
    with open(descriptor, "wb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        except OSError as exc:
            exc.filename = str(path)
            raise


# The command


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command. It sets ``run``, a function of the parsed arguments that returns the exit code."""
    parser = subparsers.add_parser(
        "certs",
        help="make certificates for development",
        description="Make a development CA, a certificate for the gateway, one for a client. Nothing is overwritten.",
    )
    parser.add_argument("folder", metavar="DIR", help="where to write them; made if it is not there")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="DNS-or-IP",
        dest="names",
        help="what clients call the gateway; may be repeated (default: localhost, 127.0.0.1, ::1 and this host's name)",
    )
    parser.add_argument("--days", type=int, default=365, help="how long they are valid (default: %(default)s)")
    parser.add_argument(
        "--client-name", default="app", metavar="USER", help="the user of the client certificate (default: %(default)s)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    names = arguments.names or default_names()
    files = create_certificates(arguments.folder, names=names, days=arguments.days, client_name=arguments.client_name)
    sys.stdout.write(_report(files, names, arguments.client_name, arguments.days))
    return 0


def _report(files: CertificateFiles, names: Sequence[str], client_name: str, days: int) -> str:
    folder = files.folder.absolute()
    full = CertificateFiles(folder)
    host = f"[{names[0]}]" if ":" in names[0] else names[0]
    return f"""\
made in {folder}:
  ca.pem, ca.key          a CA of its own; ca.key can make anybody's certificate: it stays here
  server.pem, server.key  the gateway, as {", ".join(names)}; {days} days
  client.pem, client.key  the client user "{client_name}"; {days} days

gateway.ini:
  quic_cert_file = {full.server_cert}
  quic_key_file = {full.server_key}
  ; only clients with a certificate of this CA:
  ;quic_client_ca_file = {full.ca_cert}
  ; TLS over TCP at the same port, for clients whose network lets no UDP through:
  client_tls_sslmode = require
  client_tls_cert_file = {full.server_cert}
  client_tls_key_file = {full.server_key}

client, which needs a copy of ca.pem (and with quic_client_ca_file of client.pem and client.key):
  pgtrunk.StreamManager("{host}:6432", ca_file={str(full.ca_cert)!r})
  pgtrunk.StreamManager("{host}:6432", ca_file={str(full.ca_cert)!r},
                        cert_file={str(full.client_cert)!r}, key_file={str(full.client_key)!r})

for development only: certs/README.md says how to do it in production
"""
