from __future__ import annotations

import argparse
import os
import stat
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from pgtrunk import certs
from pgtrunk.certs import CertificateFiles, create_certificates, default_names
from pgtrunk.errors import CertificateFileError, UsageError
from pgtrunk.quic.credentials import load_authority, load_credentials

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
NAMES = {"ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"}


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def alternatives(certificate: x509.Certificate) -> list[str]:
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return create_certificates(tmp_path / "made", names=["gw.example.net", "192.0.2.7", "2001:db8::7"])


def test_all_files_are_there(files: CertificateFiles) -> None:
    assert {path.name for path in files.folder.iterdir()} == NAMES


def test_the_gateway_takes_them_without_a_word(files: CertificateFiles) -> None:
    loaded = load_credentials(str(files.server_cert), str(files.server_key), now=time.time())
    assert loaded.warnings == ()
    client = load(files.client_cert).public_bytes(Encoding.DER)
    verified = load_authority(str(files.ca_cert), now=time.time()).clients.verify([client], now=time.time())
    assert verified.certificate == load(files.client_cert)


def test_the_client_is_its_user(tmp_path: Path) -> None:
    client = load(create_certificates(tmp_path / "made", client_name="günther").client_cert)
    (name,) = client.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "günther"
    assert list(client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]


def test_the_server_has_the_names_given(files: CertificateFiles) -> None:
    assert alternatives(load(files.server_cert)) == ["gw.example.net", "192.0.2.7", "2001:db8::7"]


def test_by_default_the_server_has_the_names_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "db-1")
    files = create_certificates(tmp_path / "made")
    assert alternatives(load(files.server_cert)) == ["localhost", "127.0.0.1", "::1", "db-1"]
    monkeypatch.setattr("socket.gethostname", lambda: "no host name!")
    assert default_names() == ["localhost", "127.0.0.1", "::1"]


@pytest.mark.parametrize("subject", [x509.DNSName("gw.example.net"), x509.IPAddress(ip_address("2001:db8::7"))])
def test_strict_verifiers_take_the_server(files: CertificateFiles, subject: x509.DNSName | x509.IPAddress) -> None:
    builder = PolicyBuilder().store(Store([load(files.ca_cert)]))
    builder.build_server_verifier(subject).verify(load(files.server_cert), [])


def test_two_cas_have_two_names(tmp_path: Path) -> None:
    one, two = (load(create_certificates(tmp_path / name).ca_cert).subject for name in "ab")
    assert one != two


def test_the_days_are_kept_and_start_in_the_past(tmp_path: Path) -> None:
    now = datetime(2030, 5, 1, 12, tzinfo=UTC)
    files = create_certificates(tmp_path / "made", days=30, now=now)
    for path in (files.server_cert, files.client_cert):
        assert load(path).not_valid_before_utc == now - timedelta(hours=1)
        assert load(path).not_valid_after_utc == now + timedelta(days=30)
    assert load(files.ca_cert).not_valid_after_utc >= load(files.server_cert).not_valid_after_utc


# Modes


@POSIX
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_keys_are_for_their_owner_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        files = create_certificates(tmp_path / "made")
    finally:
        os.umask(before)
    assert mode(files.folder) == 0o700
    assert [mode(path) for path in (files.ca_key, files.server_key, files.client_key)] == [0o600] * 3
    assert mode(files.ca_cert) == 0o644 & ~umask


@POSIX
def test_a_key_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    real = os.open

    def spy(path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = real(path, flags, mode)
        if str(path).endswith(".key"):
            seen.append((Path(path).name, stat.S_IMODE(os.fstat(descriptor).st_mode), os.fstat(descriptor).st_size))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        create_certificates(tmp_path / "made")
    finally:
        os.umask(before)
    assert seen == [(name, 0o600, 0) for name in ("ca.key", "server.key", "client.key")]


@POSIX
def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir(mode=0o755)
    create_certificates(folder)
    assert mode(folder) == 0o755


# Refusals


@pytest.mark.parametrize("name", sorted(NAMES))
def test_nothing_is_overwritten_and_nothing_written(tmp_path: Path, name: str) -> None:
    there = tmp_path / name
    there.write_text("mine")
    with pytest.raises(CertificateFileError, match="nothing is overwritten") as caught:
        create_certificates(tmp_path)
    assert str(there) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert there.read_text() == "mine"


@POSIX
def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "client.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CertificateFileError, match=r"client\.key exists already"):
        create_certificates(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["client.key"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made"
    real = os.path.lexists

    def lexists(path: Path) -> bool:
        found = real(path)
        if path.name == "client.pem":
            folder.mkdir()
            path.write_text("theirs")
        return found

    monkeypatch.setattr(os.path, "lexists", lexists)
    with pytest.raises(CertificateFileError, match=r"client\.pem exists already"):
        create_certificates(folder)
    assert [path.name for path in folder.iterdir()] == ["client.pem"]
    assert (folder / "client.pem").read_text() == "theirs"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CertificateFileError, match=r"cannot write .*server\.pem: no space left on device"):
        create_certificates(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("")
    with pytest.raises(CertificateFileError, match="is not a folder"):
        create_certificates(tmp_path / "made")


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_impossible_days(tmp_path: Path, days: int) -> None:
    with pytest.raises(UsageError, match=f"--days is {days}"):
        create_certificates(tmp_path / "made", days=days)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gw:6432", "https://gw", "a b", "", "-gw", "gw..net", "x" * 64, "*", "1.2.3.0/24"])
def test_impossible_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name is"):
        create_certificates(tmp_path / "made", names=["localhost", name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["*.example.net", "gw_1", "GW.example.net", "10.0.0.1", "fe80::1"])
def test_possible_names(tmp_path: Path, name: str) -> None:
    files = create_certificates(tmp_path / "made", names=[name])
    assert alternatives(load(files.server_cert)) == [name.lower()]


@pytest.mark.parametrize("user", ["", "x" * 65, "two\nlines"])
def test_impossible_users(tmp_path: Path, user: str) -> None:
    with pytest.raises(UsageError, match="--client-name is"):
        create_certificates(tmp_path / "made", client_name=user)


# The command


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    certs.register(parser.add_subparsers())
    arguments = parser.parse_args(["certs", *words])
    code: int = arguments.run(arguments)
    return code


def test_the_command_says_what_it_made_and_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"
    assert run(str(folder), "--name", "gw.example.net", "--name", "::1", "--days", "30", "--client-name", "bob") == 0
    said = capsys.readouterr().out
    for words in (
        f"quic_cert_file = {folder}/server.pem",
        f"quic_key_file = {folder}/server.key",
        "client_tls_sslmode = require",
        f"client_tls_cert_file = {folder}/server.pem",
        f"client_tls_key_file = {folder}/server.key",
        f"quic_client_ca_file = {folder}/ca.pem",
        f"StreamManager(\"gw.example.net:6432\", ca_file='{folder}/ca.pem'",
        f"cert_file='{folder}/client.pem', key_file='{folder}/client.key'",
        'the client user "bob"; 30 days',
    ):
        assert words in said


def test_the_command_refuses_a_second_time(tmp_path: Path) -> None:
    run(str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CertificateFileError):
        run(str(tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_address_first_is_written_in_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(tmp_path / "made"), "--name", "::1")
    assert '"[::1]:6432"' in capsys.readouterr().out
