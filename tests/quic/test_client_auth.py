from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from aioquic import tls
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.certificates import IS_CA, SERVER_AUTH, Identity, authority, self_signed
from pgtrunk.quic.client_auth import AlertCertificateRequired, AlertUnknownCA, ClientAuthority

CA = authority()
OTHER = authority("another CA")
MIDDLE = CA.issue("intermediate", *IS_CA, usage=None)


def key_usage(*wanted: str) -> tuple[x509.KeyUsage, bool]:
    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    names += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{name: name in wanted for name in names}), True


def chain(identity: Identity) -> list[bytes]:
    return [identity.der, *(Identity(c, identity.key).der for c in identity.chain)]


def verify(certificates: list[bytes], *cas: Identity) -> x509.Certificate:
    at = time.time()
    return ClientAuthority([ca.certificate for ca in cas or (CA,)]).verify(certificates, now=at).certificate


ACCEPTED = {
    "clientAuth": CA.issue("app"),
    "several usages": CA.issue("app", usage=[SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
    "no usage named": CA.issue("app", usage=None),
    "with names": CA.issue("app", names=["app.example", "10.1.2.3"]),
    "with key usage": CA.issue("app", key_usage("digital_signature")),
    "through an intermediate": MIDDLE.issue("app"),
    "rsa key": CA.issue("app", key=rsa.generate_private_key(65537, 2048)),
    "p-384 key": CA.issue("app", key=ec.generate_private_key(ec.SECP384R1())),
    "ed25519 key": CA.issue("app", key=ed25519.Ed25519PrivateKey.generate()),
}


@pytest.mark.parametrize("identity", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_right_certificate_is_accepted(identity: Identity) -> None:
    assert verify(chain(identity)) == identity.certificate
    assert verify(chain(identity), OTHER, CA) == identity.certificate, "any of several CAs"


@dataclass(frozen=True)
class Refused:
    identity: Identity
    alert: type[tls.Alert]


SERVER_ONLY_CA = CA.issue("for servers", *IS_CA, usage=[SERVER_AUTH])
MAY_NOT_SIGN = CA.issue("may not sign", *IS_CA, key_usage("digital_signature"), usage=None)
NOT_A_CA = CA.issue("not a CA", usage=None)
LATE_CA = CA.issue("expired intermediate", *IS_CA, usage=None, days=(-9, -1))
NO_FURTHER = CA.issue("no further CA", (x509.BasicConstraints(ca=True, path_length=0), True), usage=None)
IMPOSTOR = authority("test CA")
UNKNOWN_CRITICAL = (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)

REFUSED = {
    "self-signed": Refused(self_signed("app"), AlertUnknownCA),
    "other CA": Refused(OTHER.issue("app"), AlertUnknownCA),
    "other CA of the same name": Refused(IMPOSTOR.issue("app"), AlertUnknownCA),
    "expired": Refused(CA.issue("app", days=(-9, -1)), tls.AlertCertificateExpired),
    "not yet valid": Refused(CA.issue("app", days=(1, 9)), tls.AlertCertificateExpired),
    "serverAuth only": Refused(CA.issue("app", usage=[SERVER_AUTH]), tls.AlertUnsupportedCertificate),
    "anyExtendedKeyUsage only": Refused(
        CA.issue("app", usage=[ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), tls.AlertUnsupportedCertificate
    ),
    "may not sign handshakes": Refused(CA.issue("app", key_usage("key_agreement")), tls.AlertUnsupportedCertificate),
    "a CA": Refused(CA.issue("app", *IS_CA), tls.AlertUnsupportedCertificate),
    "the CA itself": Refused(CA, tls.AlertUnsupportedCertificate),
    "short RSA key": Refused(CA.issue("app", key=rsa.generate_private_key(65537, 1024)), tls.AlertBadCertificate),
    "unknown critical extension": Refused(CA.issue("app", UNKNOWN_CRITICAL), AlertUnknownCA),
    "issued by a client": Refused(NOT_A_CA.issue("app"), AlertUnknownCA),
    "issued by a CA that may not sign": Refused(MAY_NOT_SIGN.issue("app"), AlertUnknownCA),
    "issued by a CA for servers": Refused(SERVER_ONLY_CA.issue("app"), AlertUnknownCA),
    "issued by an expired intermediate": Refused(LATE_CA.issue("app"), tls.AlertCertificateExpired),
    "path too long": Refused(NO_FURTHER.issue("next CA", *IS_CA, usage=None).issue("app"), AlertUnknownCA),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_certificate_is_refused(case: Refused) -> None:
    with pytest.raises(tls.Alert) as caught:
        verify(chain(case.identity))
    assert type(caught.value) is case.alert


def test_a_certificate_of_the_first_version_is_refused() -> None:
    # Self-signed, until 2126; cryptography does not make such any more, but older openssl does unless told otherwise.
    first_version = x509.load_pem_x509_certificate(b"""
-----BEGIN CERTIFICATE-----
MIIBFjCBvQIUEk289Q9oTXBZD+vu9wDtlTh7Q3gwCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCdjEwIBcNMjYxMTMwMjAzMTUzWhgPMjEyNjExMDYyMDMxNTNaMA0xCzAJ
BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbTYFlLn7u3YlygFS
Y8t3J5Gso05GRP1l+/uHjUG5G85V0Ry5hr1IQmWfM2+HG80iNUF3dLBOs4wOygiP
7XZpNjAKBggqhkjOPQQDAgNIADBFAiBmTYGRPe0jd9uC8WWLBMDZgGn7bQJ4byvT
pPaXupq7dgIhAIw/ly7W7cIFKp1O33pmnGetptRb8mFf9LSEw1EB2ERk
-----END CERTIFICATE-----
""")
    with pytest.raises(tls.AlertUnsupportedCertificate, match="version 1"):
        verify([first_version.public_bytes(Encoding.DER)])


def test_no_certificate_is_refused() -> None:
    with pytest.raises(AlertCertificateRequired, match="quic_client_ca_file"):
        verify([])


def test_a_missing_intermediate_is_refused() -> None:
    with pytest.raises(AlertUnknownCA):
        verify([MIDDLE.issue("app").der])


def test_an_expired_ca_accepts_nobody() -> None:
    late = authority("late", days=(-9, -1))
    with pytest.raises(AlertUnknownCA):
        verify(chain(late.issue("app")), late)


def test_garbage_is_refused() -> None:
    with pytest.raises(tls.AlertBadCertificate):
        verify([b"\x30\x03\x02\x01\x05"])
    with pytest.raises(tls.AlertBadCertificate):
        verify([CA.issue("app").der, b""])


def test_a_long_chain_is_not_even_parsed() -> None:
    with pytest.raises(tls.AlertBadCertificate, match="7 certificates"):
        verify([b"not DER"] * 7)


def test_a_mesh_of_issuers_costs_one_way_up_only() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    mesh = [self_signed("mesh", *IS_CA, key=key) for _ in range(5)]
    leaf = mesh[0].issue("app")
    with pytest.raises(AlertUnknownCA):
        verify([leaf.der, *(member.der for member in mesh)])


def test_the_identity_ends_with_the_first_certificate_of_its_chain() -> None:
    brief = CA.issue("brief CA", *IS_CA, usage=None, days=(-1, 2))
    leaf = brief.issue("app")
    verified = ClientAuthority([CA.certificate]).verify(chain(leaf), now=time.time())
    assert verified.expires == brief.certificate.not_valid_after_utc.timestamp()


def test_time_is_an_argument() -> None:
    leaf = CA.issue("app", days=(-1, 5))
    asked = ClientAuthority([CA.certificate])
    asked.verify([leaf.der], now=time.time())
    with pytest.raises(tls.AlertCertificateExpired):
        asked.verify([leaf.der], now=time.time() + 6 * 86400)


def test_the_fingerprint_names_the_set() -> None:
    one, two = CA.certificate, OTHER.certificate
    assert ClientAuthority([one, two]).fingerprint == ClientAuthority([two, one]).fingerprint
    assert ClientAuthority([one]).fingerprint != ClientAuthority([one, two]).fingerprint


@pytest.mark.filterwarnings("ignore")  # cryptography warns of some damage, such as a negative serial number
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_certificates_only_ever_raise_alerts(data: st.DataObject) -> None:
    der = bytearray(ACCEPTED["with names"].der)
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    if bytes(der) == ACCEPTED["with names"].der:
        return
    try:
        verify([bytes(der[: data.draw(st.integers(0, len(der)))])])
    except tls.Alert:
        return
    raise AssertionError("a certificate that its CA has not signed was accepted")
