"""From typed values to the frozen settings: fills in what a key takes from another one when it is not set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .entries import DEFAULT_SOCKET_DIR, DatabaseConfig, PeerConfig, UserConfig
from .keys import MAIN
from .settings import Config

if TYPE_CHECKING:
    from .reading import Entry, Reading

__all__ = ["build"]

ANY_DATABASE = "*"


def build(reading: Reading) -> Config:
    """The settings. Values that were wrong have their defaults: whoever has faults does not use the result."""
    main = _main(reading.main)
    databases = {
        name: _database(entry, main["unix_socket_dir"]) for name, entry in reading.entries["databases"].items()
    }
    any_database = databases.pop(ANY_DATABASE, None)
    users = {name: UserConfig(name=name, **entry.values) for name, entry in reading.entries["users"].items()}
    peers = {int(name): _peer(entry) for name, entry in reading.entries["peers"].items() if "host" in entry.values}
    return Config(**main, databases=databases, any_database=any_database, users=users, peers=peers)


def _main(values: dict[str, Any]) -> dict[str, Any]:
    main = {name: values.get(name, key.default_value) for name, key in MAIN.items() if key.acted_on}
    if "quic_listen_addr" not in values:
        main["quic_listen_addr"] = main["listen_addr"]
    if main["quic_listen_port"] is None:
        main["quic_listen_port"] = main["listen_port"]
    return main


def _database(entry: Entry, unix_socket_dir: str | None) -> DatabaseConfig:
    values = dict(entry.values)
    hosts = values.pop("host", ())
    # Without a host PgBouncer looks for Postgres where its own socket is.
    host = hosts[0] if hosts else unix_socket_dir or DEFAULT_SOCKET_DIR
    if "user" not in values:
        values.pop("password", None)
    if (reserve := values.pop("reserve_pool", None)) is not None:
        values.setdefault("reserve_pool_size", reserve)
    return DatabaseConfig(name=entry.name, host=host, **values)


def _peer(entry: Entry) -> PeerConfig:
    return PeerConfig(peer_id=int(entry.name), **entry.values)
