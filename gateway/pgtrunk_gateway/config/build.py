"""From typed values to the frozen settings: fills in what a key takes from another one when it is not set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .entries import DEFAULT_PORT, DEFAULT_SOCKET_DIR, DatabaseConfig, PeerConfig, Place, UserConfig
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
    hosts, ports = values.pop("host", ()), values.pop("port", (DEFAULT_PORT,))
    if not hosts and "patroni" not in values:
        # Without a host PgBouncer looks for Postgres where its own socket is.
        hosts = (unix_socket_dir or DEFAULT_SOCKET_DIR,)
    # One port for all hosts, or one for each; other numbers are for `checks`.
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    first, *others = map(Place, hosts, ports) if hosts else (Place("", DEFAULT_PORT),)
    if "user" not in values:
        values.pop("password", None)
    if (reserve := values.pop("reserve_pool", None)) is not None:
        values.setdefault("reserve_pool_size", reserve)
    return DatabaseConfig(name=entry.name, host=first.host, port=first.port, others=tuple(others), **values)


def _peer(entry: Entry) -> PeerConfig:
    return PeerConfig(peer_id=int(entry.name), **entry.values)
