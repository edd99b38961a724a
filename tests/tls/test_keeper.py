"""Contexts from a file of settings: what each is, what is wrong with it and where, and how they are replaced."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from helpers.certificates import authority
from pgtrunk_gateway.config import load
from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.tls import TlsKeeper, end_point


class Files:
    """A gateway.ini, and certificates beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = authority()
        (folder / "ca.pem").write_bytes(self.ca.pem)
        self.own = self.ca.issue("localhost", names=["localhost"])
        self.cert, self.key = self.own.save(folder, "own")
        self.other = self.ca.issue("other")
        self.other_cert, self.other_key = self.other.save(folder, "other")
        for path in folder.glob("*.key"):
            path.chmod(0o600)

    def write(self, databases: str = "shop = host=127.0.0.1", /, **settings: object) -> Path:
        ini = self.folder / "gateway.ini"
        lines = "\n".join(f"{key} = {value}" for key, value in settings.items())
        ini.write_text(f"[databases]\n{databases}\n[pgtrunk]\nauth_type = trust\nlisten_addr = *\n{lines}\n")
        ini.chmod(0o600)
        return ini

    def keeper(self, databases: str = "shop = host=127.0.0.1", /, **settings: object) -> TlsKeeper:
        keeper = TlsKeeper()
        keeper.reload(load(self.write(databases, **settings)))
        return keeper

    @property
    def door(self) -> dict[str, object]:
        return {
            "client_tls_sslmode": "require",
            "client_tls_cert_file": self.cert,
            "client_tls_key_file": self.key,
        }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# -- the door ----------------------------------------------------------------------------------------------------------


def test_there_is_no_door_unless_it_is_asked_for(files: Files) -> None:
    for keeper in (TlsKeeper(), files.keeper(), files.keeper(**files.door | {"client_tls_sslmode": "disable"})):
        assert (keeper.door.mode, keeper.door.context, keeper.door.requires_tls) == ("disable", None, False)


def test_a_door(files: Files) -> None:
    door = files.keeper(**files.door).door
    context = door.context
    assert context is not None
    assert door.requires_tls
    assert door.binding == end_point(files.own.der)
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.num_tickets == 0


@pytest.mark.parametrize(
    ("mode", "verify", "requires"),
    [
        ("allow", ssl.CERT_OPTIONAL, False),
        ("prefer", ssl.CERT_OPTIONAL, False),
        ("require", ssl.CERT_OPTIONAL, True),
        ("verify-ca", ssl.CERT_REQUIRED, True),
        ("verify-full", ssl.CERT_REQUIRED, True),
    ],
)
def test_what_is_asked_of_clients(files: Files, mode: str, verify: ssl.VerifyMode, requires: bool) -> None:
    ca = files.folder / "ca.pem"
    door = files.keeper(**files.door | {"client_tls_sslmode": mode, "client_tls_ca_file": ca}).door
    assert door.context is not None
    assert (door.context.verify_mode, door.requires_tls) == (verify, requires)


def test_versions_ciphers_and_curve(files: Files) -> None:
    extra = {"client_tls_protocols": "tlsv1.2", "client_tls_ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"}
    context = files.keeper(**files.door, **extra, client_tls_ecdhcurve="secp384r1").door.context
    assert context is not None
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    assert [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"] == [
        "ECDHE-ECDSA-AES256-GCM-SHA384"
    ]


def test_ciphers_of_tls_1_3_cannot_be_chosen_and_that_is_said(files: Files) -> None:
    loaded = load(files.write(**files.door, client_tls13_ciphers="TLS_AES_128_GCM_SHA256"))
    (remark,) = [remark for remark in loaded.remarks if "tls13" in remark.message]
    assert remark.serious
    assert remark.source == loaded.at("client_tls13_ciphers")


def test_versions_that_openssl_does_not_offer_are_a_warning(files: Files) -> None:
    (warning,) = files.keeper(server_tls_protocols="all").warnings
    assert warning.startswith("server_tls_sslmode = prefer: protocols: OpenSSL offers TLS 1.0 and 1.1 only with")


def test_a_certificate_that_is_out_of_date_is_a_warning(files: Files) -> None:
    old, key = files.ca.issue("old", days=(-10, -5)).save(files.folder, "old")
    keeper = files.keeper(**files.door | {"client_tls_cert_file": old, "client_tls_key_file": key})
    assert "expired on" in keeper.warnings[0]


# -- what is wrong, and where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_tls_key_file": "other.key"}, "client_tls_key_file: .* is not the key of the certificate"),
        ({"client_tls_key_file": "own.pem"}, "client_tls_key_file: .* holds no private key"),
        ({"client_tls_cert_file": "own.key"}, "client_tls_cert_file: .* holds no certificate: it holds a private key"),
        ({"client_tls_cert_file": "junk"}, "client_tls_cert_file: .* cannot be parsed"),
        ({"client_tls_key_file": "sealed.key"}, "client_tls_key_file: .* is encrypted"),
        ({"client_tls_key_file": "broken.key"}, "client_tls_key_file: .* cannot be read"),
        ({"client_tls_ca_file": "own.key"}, "client_tls_ca_file: .* holds no certificate"),
        ({"client_tls_protocols": "sslv2"}, "client_tls_protocols: invalid protocol"),
        ({"client_tls_ciphers": "NONSENSE"}, "client_tls_ciphers: invalid list"),
        ({"client_tls_ecdhcurve": "P-1"}, "client_tls_ecdhcurve: unknown curve"),
        ({"client_tls_ecdhcurve": "none"}, "client_tls_ecdhcurve: ECDH cannot be switched off"),
        ({"server_tls_ca_file": "junk"}, "server_tls_ca_file: .* cannot be parsed"),
        ({"server_tls_ciphers": "NONSENSE"}, "server_tls_ciphers: invalid list"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(files: Files, settings: dict[str, str], words: str) -> None:
    (files.folder / "junk").write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    (files.folder / "broken.key").write_text("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n")
    sealed = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (files.folder / "sealed.key").write_bytes(sealed)
    (key, value), *_ = settings.items()
    value = str(files.folder / value) if key.endswith("_file") else value
    loaded = load(files.write(**files.door | {key: value}))
    keeper = TlsKeeper()
    with pytest.raises(ConfigError, match=f"TLS setup failed: {words}") as raised:
        keeper.reload(loaded)
    assert raised.value.path == loaded.path
    assert raised.value.line == loaded.at(key).line
    assert keeper.door.mode == "disable"


def test_the_key_of_a_certificate_further_down(files: Files) -> None:
    both = files.folder / "both.pem"
    both.write_bytes(files.own.pem + files.other.pem)
    settings = files.door | {"client_tls_cert_file": both, "client_tls_key_file": files.other_key}
    with pytest.raises(ConfigError, match="not the first"):
        files.keeper(**settings)


def test_what_is_wrong_in_a_database_is_said_at_its_line(files: Files) -> None:
    (files.folder / "junk").write_text("junk")
    entries = f"plain = host=db\nshop = host=db server_tls_sslmode=verify-ca server_tls_ca_file={files.folder}/junk"
    with pytest.raises(
        ConfigError, match=r'database "shop": TLS setup failed: server_tls_ca_file: .* not PEM'
    ) as raised:
        files.keeper(entries)
    assert raised.value.line == 3


# -- towards Postgres --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "verify", "name"),
    [
        ("allow", ssl.CERT_NONE, False),
        ("prefer", ssl.CERT_NONE, False),
        ("require", ssl.CERT_NONE, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("verify-full", ssl.CERT_REQUIRED, True),
    ],
)
def test_what_is_asked_of_postgres(files: Files, mode: str, verify: ssl.VerifyMode, name: bool) -> None:
    keeper = files.keeper(server_tls_sslmode=mode, server_tls_ca_file=files.folder / "ca.pem")
    server = keeper.server(load(files.write()).config.databases["shop"])
    assert server is not None
    assert (server.mode, server.context.verify_mode, server.context.check_hostname) == (mode, verify, name)


def test_a_ca_that_verifies_nothing_is_a_warning(files: Files) -> None:
    ca = files.folder / "ca.pem"
    for mode, warned in (("require", True), ("verify-ca", False)):
        keeper = files.keeper(server_tls_sslmode=mode, server_tls_ca_file=ca)
        assert any("nothing is verified below verify-ca" in warning for warning in keeper.warnings) is warned


def test_each_database_has_its_own(files: Files) -> None:
    ca = files.folder / "ca.pem"
    entries = f"plain = host=db\nshop = host=db server_tls_sslmode=verify-full server_tls_ca_file={ca}\n"
    entries += "* = host=db server_tls_sslmode=require"
    ini = files.write(entries, server_tls_sslmode="disable")
    loaded = load(ini)
    keeper = TlsKeeper()
    keeper.reload(loaded)
    modes = {}
    for name in ("plain", "shop", "any"):
        database = loaded.config.database(name)
        assert database is not None
        server = keeper.server(database)
        modes[name] = server.mode if server is not None else None
    assert modes == {"plain": None, "shop": "verify-full", "any": "require"}


# -- reloads -----------------------------------------------------------------------------------------------------------


def test_what_is_the_same_is_equal_and_what_is_not_is_not(files: Files) -> None:
    """By this pools tell whether their backends are still as the settings want them."""
    settings = {"server_tls_sslmode": "verify-ca", "server_tls_ca_file": files.folder / "ca.pem"}
    loaded = load(files.write(**settings))
    shop = loaded.config.databases["shop"]
    keeper = TlsKeeper()
    keeper.reload(loaded)
    first = keeper.server(shop)
    keeper.reload(loaded)
    assert keeper.server(shop) == first
    (files.folder / "ca.pem").write_bytes(authority("another").pem)
    keeper.reload(loaded)
    renewed = keeper.server(shop)
    assert renewed != first
    keeper.reload(load(files.write(**settings | {"server_tls_protocols": "tlsv1.3"})))
    assert keeper.server(shop) != renewed


def test_a_reload_that_fails_leaves_all_as_it_was(files: Files) -> None:
    keeper = files.keeper(**files.door)
    before = keeper.door
    loaded = load(files.write(**files.door | {"server_tls_ca_file": files.key}))
    with pytest.raises(ConfigError):
        keeper.reload(loaded)
    assert keeper.door is before
    assert keeper.server(loaded.config.databases["shop"]) is not None


# -- peers -------------------------------------------------------------------------------------------------------------


def test_peers_are_spoken_to_in_clear_unless_their_entry_says_otherwise(files: Files) -> None:
    entries = "shop = host=127.0.0.1\n[peers]\n1 = host=a\n2 = host=b server_tls_sslmode=verify-full\n3 = host=c"
    loaded = load(files.write(f"{entries} server_tls_sslmode=disable", server_tls_sslmode="require", peer_id=9))
    keeper = TlsKeeper()
    keeper.reload(loaded)
    plain, secured, off = (keeper.peer(peer) for peer in loaded.config.peers.values())
    assert (plain, off) == (None, None)
    assert secured is not None
    assert (secured.mode, secured.context.check_hostname) == ("verify-full", True)


def test_a_peers_certificate_that_cannot_be_used_changes_nothing(files: Files) -> None:
    keeper = files.keeper()
    (files.folder / "bad.pem").write_text("no certificate")
    peer = f"5 = host=a server_tls_sslmode=verify-ca server_tls_ca_file={files.folder / 'bad.pem'}"
    with pytest.raises(ConfigError, match=r'gateway\.ini:4: peer "5": TLS setup failed: server_tls_ca_file'):
        keeper.reload(load(files.write(f"shop = host=127.0.0.1\n[peers]\n{peer}", peer_id=9)))
    assert keeper.door.mode == "disable"
