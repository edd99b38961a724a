"""The contexts in force, and how a reload replaces them: all at once, or none where one of them cannot be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.config.entries import PeerConfig
from pgtrunk_gateway.config.faults import Source, quoted
from pgtrunk_gateway.tls.contexts import Door, ServerTls, make_door, make_server_tls
from pgtrunk_gateway.tls.settings import SettingError, TlsSettings, client_settings, peer_settings, server_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import DatabaseConfig
    from pgtrunk_gateway.errors import ConfigError

__all__ = ["TlsKeeper"]

_ANY = "*"


class TlsKeeper:
    """TLS of one gateway. Without :meth:`reload` there is none, on either side.

    Who begins a handshake asks for the context then; connections that are there keep theirs.
    """

    def __init__(self) -> None:
        self.door = Door()
        """How clients may come in now."""
        self.warnings: tuple[str, ...] = ()
        """What the last reload has to say, each with its place."""
        self._servers: dict[str, ServerTls | None] = {}
        """Of databases with settings of their own."""
        self._server: ServerTls | None = None
        self._peers: dict[PeerConfig, ServerTls | None] = {}
        """By all that an entry says: one that has changed is not spoken to as it was before."""

    def server(self, database: DatabaseConfig) -> ServerTls | None:
        """How to speak to the server of ``database`` over TCP; None: in clear."""
        if not _has_own(database):
            return self._server
        # A database that is made from "*" has that entry's settings, under a name that no entry has.
        return self._servers.get(database.name, self._servers.get(_ANY, self._server))

    def peer(self, peer: PeerConfig) -> ServerTls | None:
        """How to speak to ``peer`` over TCP; None: in clear."""
        return self._peers[peer] if peer.server_tls_sslmode is not None else None

    def reload(self, loaded: Loaded) -> None:
        """Makes all contexts anew, from the files as they are now. Raises as :meth:`prepare`; then all is as before."""
        self.prepare(loaded)()

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        """Makes all contexts anew, from the files as they are now -> what brings them into force, all at once.

        Raises :class:`ConfigError` ("TLS setup failed: ..."), naming file, key and line.
        """
        config, making = loaded.config, _Making(loaded)
        door = making.door(client_settings(config))
        server = making.server(server_settings(config), None)
        entries = [*config.databases.values(), *([config.any_database] if config.any_database is not None else [])]
        servers = {
            entry.name: making.server(server_settings(config, entry), entry) for entry in entries if _has_own(entry)
        }
        peers = {
            peer: making.server(peer_settings(config, peer), peer)
            for peer in config.peers.values()
            if peer.server_tls_sslmode is not None
        }

        def commit() -> None:
            self.door, self._server, self._servers, self._peers = door, server, servers, peers
            self.warnings = tuple(dict.fromkeys(making.warnings))

        return commit


class _Making:
    """One reload: puts the places of the configuration to what goes wrong, and to what is worth a warning."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.warnings: list[str] = []

    def door(self, settings: TlsSettings) -> Door:
        try:
            door = make_door(settings)
        except SettingError as error:
            raise self._error(f"client_tls_{error.key}", error) from error
        self.warnings += [f"client_tls_sslmode = {door.mode}: {warning}" for warning in door.warnings]
        return door

    def server(self, settings: TlsSettings, entry: DatabaseConfig | PeerConfig | None) -> ServerTls | None:
        try:
            server = make_server_tls(settings)
        except SettingError as error:
            raise self._error(f"server_tls_{error.key}", error, entry) from error
        if server is not None:
            label = "" if entry is None else f"{_label(entry)}: "
            self.warnings += [f"{label}server_tls_sslmode = {server.mode}: {warning}" for warning in server.warnings]
        return server

    def _error(self, key: str, error: SettingError, entry: DatabaseConfig | PeerConfig | None = None) -> ConfigError:
        words = f"TLS setup failed: {key}: {error}"
        if entry is None or not getattr(entry, key, None):
            return self._loaded.at(key).error(words)
        section, name = _place(entry)
        line = self._loaded.reading.entries[section].get(name)
        where = line.source if line is not None else Source(self._loaded.path)
        return where.error(f"{_label(entry)}: {words}")


def _place(entry: DatabaseConfig | PeerConfig) -> tuple[str, str]:
    """The section of an entry, and its name there."""
    return ("peers", str(entry.peer_id)) if isinstance(entry, PeerConfig) else ("databases", entry.name)


def _label(entry: DatabaseConfig | PeerConfig) -> str:
    section, name = _place(entry)
    return f"{section.removesuffix('s')} {quoted(name)}"


def _has_own(database: DatabaseConfig) -> bool:
    return bool(
        database.server_tls_sslmode
        or database.server_tls_ca_file
        or database.server_tls_cert_file
        or database.server_tls_key_file
    )
