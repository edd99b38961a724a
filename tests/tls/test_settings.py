"""What the words of client_tls_* and server_tls_* mean."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.tls.settings import SettingError, parse_ciphers, parse_protocols, server_settings


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        (None, (2, 3)),
        ("", (2, 3)),
        ("secure", (2, 3)),
        ("all", (0, 3)),
        ("tlsv1.3", (3, 3)),
        ("TLSv1.2", (2, 2)),
        ("tlsv1.2,tlsv1.3", (2, 3)),
        ("tlsv1.0: tlsv1.1", (0, 1)),
        ("all, !tlsv1.0", (1, 3)),
        ("!tlsv1.0,!tlsv1.1", (2, 3)),
    ],
)
def test_protocols(text: str | None, versions: tuple[int, int]) -> None:
    assert parse_protocols(text) == versions


@pytest.mark.parametrize(
    ("text", "words"),
    [("sslv3", "invalid protocol 'sslv3'"), ("tlsv1.0,tlsv1.3", "gap"), ("tlsv1.2,!tlsv1.2", "no version")],
)
def test_protocols_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(SettingError, match=words) as raised:
        parse_protocols(text)
    assert raised.value.key == "protocols"


@pytest.mark.parametrize("word", [None, "", "default", "Secure", "fast", "normal"])
def test_words_for_openssls_own_choice_of_ciphers(word: str | None) -> None:
    assert parse_ciphers(word) is None


def test_other_ciphers_are_handed_on() -> None:
    assert parse_ciphers("HIGH:!aNULL") == "HIGH:!aNULL"
    assert parse_ciphers("all") == "ALL:!aNULL:!eNULL"


def test_a_database_goes_before_the_main_section() -> None:
    config = Config(server_tls_sslmode="prefer", server_tls_ca_file="main.pem", server_tls_cert_file="main.crt")
    database = DatabaseConfig(name="shop", server_tls_sslmode="verify-full", server_tls_ca_file="shop.pem")
    settings = server_settings(config, database)
    assert (settings.mode, settings.ca_file, settings.cert_file) == ("verify-full", "shop.pem", "main.crt")


def test_a_certificate_and_its_key_come_from_the_same_place() -> None:
    config = Config(server_tls_cert_file="main.crt", server_tls_key_file="main.key")
    database = DatabaseConfig(name="shop", server_tls_cert_file="shop.crt")
    settings = server_settings(config, database)
    assert (settings.cert_file, settings.key_file) == ("shop.crt", None)
