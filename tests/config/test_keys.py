"""The registry: it knows all of PgBouncer's keys, and the settings have a field for each key that is acted on."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from pgtrunk_gateway.config import keys_ours, keys_pgbouncer
from pgtrunk_gateway.config.keys import DATABASE, ENTRY_SECTIONS, MAIN, PEER, USER
from pgtrunk_gateway.config.settings import Config, DatabaseConfig, PeerConfig, UserConfig

if TYPE_CHECKING:
    from pgtrunk_gateway.config.key import Key

ALL = [*MAIN.values(), *DATABASE.values(), *USER.values(), *PEER.values()]
NEEDS_RESTART = {
    "disable_pqexec",
    "job_name",
    "listen_addr",
    "listen_backlog",
    "listen_port",
    "pidfile",
    "pkt_buf",
    "resolv_conf",
    "so_reuseport",
    "track_extra_parameters",
    "unix_socket_dir",
    "unix_socket_group",
    "unix_socket_mode",
    "user",
}


TLS_OF_A_DATABASE = {f"server_tls_{name}" for name in ("sslmode", "ca_file", "cert_file", "key_file")}
"""Which PgBouncer has for all databases together only."""
OF_A_PEER = TLS_OF_A_DATABASE | {"long_keys"}
"""PgBouncer speaks to all of its peers in clear, and 3.0."""
OF_A_DATABASE = TLS_OF_A_DATABASE | {"patroni", "target_session_attrs"}


@pytest.mark.parametrize("key", ALL, ids=lambda key: key.name)
def test_default_round_trips(key: Key) -> None:
    value = key.default_value
    assert key.kind.read(key.kind.write(value)) == value


@pytest.mark.parametrize("key", keys_pgbouncer.KEYS, ids=lambda key: key.name)
def test_defaults_are_written_as_pgbouncer_writes_them(key: Key) -> None:
    assert key.kind.write(key.default_value) == key.default


def test_show_config_has_its_hundred_rows() -> None:
    # PgBouncer knows service_name on Windows only.
    assert len(keys_pgbouncer.KEYS) == 101
    assert len({key.name for key in keys_pgbouncer.KEYS} - {"service_name"}) == 100


def test_keys_that_need_a_restart_in_pgbouncer_do_here() -> None:
    assert {key.name for key in keys_pgbouncer.KEYS if not key.changeable} - {"service_name"} == NEEDS_RESTART


def test_no_key_is_listed_twice() -> None:
    assert len(MAIN) == len(keys_pgbouncer.KEYS) + len(keys_ours.KEYS)


def test_only_our_keys_are_ours() -> None:
    assert {key.name for key in ALL if key.ours} == {key.name for key in keys_ours.KEYS} | OF_A_DATABASE | OF_A_PEER


def test_entries_have_all_of_pgbouncers_keys() -> None:
    assert {section: len(keys) for section, keys in ENTRY_SECTIONS.items()} == {
        "databases": 23 + len(OF_A_DATABASE),
        "users": 10,
        "peers": 3 + len(OF_A_PEER),
    }


@pytest.mark.parametrize(
    ("settings", "keys", "others"),
    [
        (Config, MAIN, {"databases", "any_database", "users", "peers"}),
        (DatabaseConfig, DATABASE, {"name", "others"}),
        (UserConfig, USER, {"name"}),
        (PeerConfig, PEER, {"peer_id"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_settings_have_a_field_for_each_key_that_is_acted_on(
    settings: type, keys: dict[str, Key], others: set[str]
) -> None:
    # An older name of another key has no field of its own.
    acted_on = {key.name for key in keys.values() if key.acted_on} - {"reserve_pool"}
    assert {field.name for field in fields(settings)} - others == acted_on


def test_settings_and_registry_have_the_same_defaults() -> None:
    # quic_listen_port has none of its own: it is that of listen_port.
    names = [key.name for key in MAIN.values() if key.acted_on and key.name != "quic_listen_port"]
    assert {name: getattr(Config(), name) for name in names} == {name: MAIN[name].default_value for name in names}


@pytest.mark.parametrize(
    ("name", "unit"),
    [("query_wait_timeout", "s"), ("tcp_user_timeout", "ms"), ("max_packet_size", "bytes"), ("auth_file", "")],
)
def test_units(name: str, unit: str) -> None:
    assert MAIN[name].unit == unit
