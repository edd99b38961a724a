from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa

from helpers.certificates import CLIENT_AUTH, IS_CA, SERVER_AUTH, Identity, authority
from pgtrunk.errors import CertificateFileError
from pgtrunk.quic.credentials import Credentials, load_authority, load_credentials

if TYPE_CHECKING:
    from pathlib import Path

CA = authority()
SERVER = CA.issue("gateway", usage=[SERVER_AUTH], names=["localhost"])


def load(cert: object, key: object) -> Credentials:
    return load_credentials(str(cert), str(key), now=time.time())


def save(folder: Path, identity: Identity, name: str = "server") -> tuple[str, str]:
    cert, key = identity.save(folder, name)
    os.chmod(key, 0o600)
    return cert, key


def test_a_pair_is_loaded(tmp_path: Path) -> None:
    loaded = load(*save(tmp_path, SERVER))
    assert loaded.certificate == SERVER.certificate
    assert loaded.chain == ()
    assert loaded.warnings == ()


def test_a_chain_is_loaded_in_order(tmp_path: Path) -> None:
    leaf = CA.issue("middle", *IS_CA, usage=None).issue("gateway", usage=[SERVER_AUTH], names=["localhost"])
    loaded = load(*save(tmp_path, leaf))
    assert (loaded.certificate, loaded.chain) == (leaf.certificate, leaf.chain)


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["rsa", "p-384", "ed25519"],
)
def test_other_kinds_of_key_are_loaded(tmp_path: Path, key: rsa.RSAPrivateKey) -> None:
    load(*save(tmp_path, CA.issue("gateway", usage=[SERVER_AUTH], names=["localhost"], key=key)))


def test_the_old_form_of_an_ec_key_is_loaded(tmp_path: Path) -> None:
    cert, key = save(tmp_path, SERVER)
    old = SERVER.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (tmp_path / "server.key").write_bytes(old)
    load(cert, key)


# What is wrong with a file


def refusal(cert: object, key: object) -> str:
    with pytest.raises(CertificateFileError) as caught:
        load(cert, key)
    assert caught.value.sqlstate == "F0000"
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("missing", ["quic_cert_file", "quic_key_file"])
def test_a_missing_file(tmp_path: Path, missing: str) -> None:
    paths = dict(zip(("quic_cert_file", "quic_key_file"), save(tmp_path, SERVER), strict=True))
    os.unlink(paths[missing])
    assert refusal(*paths.values()) == f'cannot read {missing} "{paths[missing]}": no such file or directory'


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, tmp_path) == f'cannot read quic_cert_file "{tmp_path}": is a directory'


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = save(tmp_path, SERVER)

    # Not by its mode: root, as whom tests may run, reads everything.
    def deny(path: str, mode: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open", deny)
    assert refusal(cert, key) == f'cannot read quic_cert_file "{cert}": permission denied'


@pytest.mark.parametrize("content", [b"", b"\x30\x82\x01\x0a", b"hello\n"], ids=["empty", "DER", "text"])
def test_not_pem(tmp_path: Path, content: bytes) -> None:
    cert, key = save(tmp_path, SERVER)
    odd = tmp_path / "odd"
    odd.write_bytes(content)
    assert f'quic_cert_file "{odd}" holds no certificate' in refusal(odd, key)
    assert f'quic_key_file "{odd}" holds no private key' in refusal(cert, odd)


def test_swapped_files(tmp_path: Path) -> None:
    cert, key = save(tmp_path, SERVER)
    assert "belongs in quic_key_file" in refusal(key, cert)


def test_damaged_pem(tmp_path: Path) -> None:
    cert, key = save(tmp_path, SERVER)
    damaged_cert, damaged_key = tmp_path / "c", tmp_path / "k"
    damaged_cert.write_bytes(SERVER.pem.replace(b"MII", b"AAA", 1))
    damaged_key.write_bytes(SERVER.key_pem.replace(b"MIG", b"AAA", 1))
    assert "cannot be parsed" in refusal(damaged_cert, key)
    assert "cannot be read" in refusal(cert, damaged_key)


def test_a_key_that_does_not_match(tmp_path: Path) -> None:
    cert, _ = save(tmp_path, SERVER)
    _, key = save(tmp_path, CA.issue("another"), "another")
    assert refusal(cert, key) == (
        f'quic_key_file "{key}" is not the key of the certificate in quic_cert_file "{cert}"; '
        "the two must come as a pair"
    )


def test_a_chain_in_the_wrong_order(tmp_path: Path) -> None:
    reverse = replace(SERVER, certificate=CA.certificate, chain=(SERVER.certificate,))
    assert "put the gateway's own first" in refusal(*save(tmp_path, reverse))


def test_a_chain_that_does_not_fit_a_handshake(tmp_path: Path) -> None:
    endless = replace(SERVER, chain=(CA.certificate,) * 60)
    assert "fit into a handshake" in refusal(*save(tmp_path, endless))


def test_an_encrypted_key(tmp_path: Path) -> None:
    cert, key = save(tmp_path, SERVER)
    locked = SERVER.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    (tmp_path / "server.key").write_bytes(locked)
    message = refusal(cert, key)
    assert f'quic_key_file "{key}" is encrypted' in message
    assert "openssl pkey" in message


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (ec.generate_private_key(ec.SECP521R1()), "on the curve secp521r1; use P-256"),
        (dsa.generate_private_key(2048), "TLS 1.3 cannot sign with"),
    ],
    ids=["p-521", "dsa"],
)
def test_a_key_that_cannot_be_used(tmp_path: Path, key: ec.EllipticCurvePrivateKey, words: str) -> None:
    assert words in refusal(*save(tmp_path, replace(SERVER, key=key)))


# What works, and will trouble somebody


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (CA.issue("g", usage=[SERVER_AUTH], names=["localhost"], days=(-9, -1)), "expired at"),
        (CA.issue("g", usage=[SERVER_AUTH], names=["localhost"], days=(1, 9)), "not valid before"),
        (CA.issue("g", usage=[CLIENT_AUTH], names=["localhost"]), "lacks serverAuth"),
        (CA.issue("g", usage=[SERVER_AUTH]), "no subject alternative name"),
    ],
    ids=["expired", "not yet valid", "for clients", "nameless"],
)
def test_a_certificate_that_clients_refuse_is_warned_of(tmp_path: Path, identity: Identity, words: str) -> None:
    cert, key = save(tmp_path, identity)
    (warning,) = load(cert, key).warnings
    assert warning.startswith(f'quic_cert_file "{cert}"')
    assert words in warning


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_a_key_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    cert, key = save(tmp_path, SERVER)
    os.chmod(key, 0o644)
    (warning,) = load(cert, key).warnings
    assert f"chmod 600 {key}" in warning


# Client CAs


def test_client_cas_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(CA.pem + authority("second").pem)
    loaded = load_authority(str(file), now=time.time())
    loaded.clients.verify([CA.issue("app").der], now=time.time())
    assert loaded.warnings == ()


def test_an_expired_ca_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(CA.pem + authority("late", days=(-9, -1)).pem)
    (warning,) = load_authority(str(file), now=time.time()).warnings
    assert "CN=late expired" in warning


def test_a_ca_file_without_ca(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    for content, words in ((b"", "holds no certificate"), (CA.key_pem, "holds no certificate")):
        file.write_bytes(content)
        with pytest.raises(CertificateFileError, match=words) as caught:
            load_authority(str(file), now=time.time())
        assert f'quic_client_ca_file "{file}"' in str(caught.value)
    with pytest.raises(CertificateFileError, match="no such file"):
        load_authority(str(tmp_path / "none"), now=time.time())
