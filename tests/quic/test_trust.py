"""Whom a client takes for its gateway, beyond what aioquic checks. Whole handshakes are in test_client.py."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from aioquic import tls
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from helpers.certificates import CLIENT_AUTH, SERVER_AUTH, authority
from pgtrunk.errors import CertificateFileError, UsageError
from pgtrunk.quic.trust import ClientContext, check_purpose, check_strength, expected_name, load_anchors, names_in

CA = authority()
ANY = x509.oid.ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE


def key_usage(*, digital_signature: bool) -> x509.KeyUsage:
    others = ("content_commitment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign", "encipher_only")
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_encipherment=True,
        decipher_only=False,
        **dict.fromkeys(others, False),
    )


@pytest.mark.parametrize("usage", [None, (SERVER_AUTH,), (CLIENT_AUTH, SERVER_AUTH), (ANY,)])
def test_purposes_that_are_fine(usage: tuple[x509.ObjectIdentifier, ...] | None) -> None:
    check_purpose(CA.issue("gateway", usage=usage).certificate)


def test_purposes_that_are_not() -> None:
    with pytest.raises(tls.AlertUnsupportedCertificate, match="lacks serverAuth"):
        check_purpose(CA.issue("app", usage=(CLIENT_AUTH,)).certificate)
    only_encipherment = CA.issue("gateway", (key_usage(digital_signature=False), True), usage=(SERVER_AUTH,))
    with pytest.raises(tls.AlertUnsupportedCertificate, match="lacks digitalSignature"):
        check_purpose(only_encipherment.certificate)
    check_purpose(CA.issue("gateway", (key_usage(digital_signature=True), True), usage=(SERVER_AUTH,)).certificate)


def test_weak_keys() -> None:
    weak = CA.issue("gateway", key=rsa.generate_private_key(65537, 1024)).certificate
    with pytest.raises(tls.AlertBadCertificate, match="RSA key of 1024 bits is too weak; 2048"):
        check_strength(weak, [])
    with pytest.raises(tls.AlertBadCertificate, match="1024 bits"):
        check_strength(CA.certificate, [weak])
    check_strength(CA.issue("gateway").certificate, [CA.certificate])


def test_names_in_words() -> None:
    assert names_in(CA.issue("x", names=("gw.example", "192.0.2.1")).certificate) == "is for gw.example, 192.0.2.1"
    assert names_in(CA.issue("only.a.common.name").certificate) == "names nobody"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gw.example.net", "gw.example.net"),
        ("gw.example.net.", "gw.example.net"),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("tür.example", "xn--tr-xka.example"),
    ],
)
def test_the_name_a_certificate_must_carry(host: str, name: str) -> None:
    assert expected_name(host) == name


@pytest.mark.parametrize("host", ["", ".", "a..b", "x" * 64])
def test_what_is_no_name(host: str) -> None:
    with pytest.raises(UsageError):
        expected_name(host)


def test_anchors_given_as_bytes_or_file_are_one_set(tmp_path: Path) -> None:
    other = authority("other")
    path = tmp_path / "ca.pem"
    path.write_bytes(b"a comment\n" + other.pem.replace(b"\n", b"\r\n"))
    anchors = load_anchors(str(path), CA.pem)
    assert anchors.cadata == CA.pem + other.pem
    assert (anchors.cafile, anchors.capath) == (None, None)


def test_anchors_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CertificateFileError, match="ca_file"):
        load_anchors(str(tmp_path), None)
    with pytest.raises(CertificateFileError, match="ca_data"):
        load_anchors(None, b"-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n")


def test_without_anchors_the_systems_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ssl.get_default_verify_paths()
    anchors = load_anchors(None, None)
    assert (anchors.cafile, anchors.capath) == (paths.cafile, paths.capath)
    nowhere = SimpleNamespace(cafile=None, capath=None)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nowhere)
    assert load_anchors(None, None).cadata is None  # aioquic then falls back to certifi's


@pytest.mark.parametrize(
    ("there", "offered"),
    [
        ([tls.Group.SECP256R1, tls.Group.SECP384R1, tls.Group.X25519, tls.Group.X448], ["X25519", "SECP256R1"]),
        ([tls.Group.SECP256R1, tls.Group.SECP384R1], ["SECP256R1"]),  # where OpenSSL has FIPS's alone
    ],
)
def test_a_client_makes_no_keys_that_nobody_needs(there: list[tls.Group], offered: list[str]) -> None:
    stock = tls.Context(is_client=True)
    stock._supported_groups = there
    assert [group.name for group in ClientContext.replace(stock)._supported_groups] == offered
