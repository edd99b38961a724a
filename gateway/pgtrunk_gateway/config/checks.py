"""What is wrong only together: keys that need each other, and what the disk has to say about the names of files."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .faults import Remark, Source, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..errors import ConfigError
    from .reading import Entry, Reading
    from .settings import Config

__all__ = ["Checks"]

TLS_FILES = ("server_tls_ca_file", "server_tls_cert_file", "server_tls_key_file")
READABLE = (
    "auth_file",
    "client_tls_ca_file",
    "client_tls_cert_file",
    "client_tls_key_file",
    "patroni_ca_file",
    "quic_cert_file",
    "quic_client_ca_file",
    "quic_key_file",
    "quic_ticket_keys_file",
    *TLS_FILES,
)
SECRET = ("auth_file", "client_tls_key_file", "quic_key_file", "quic_ticket_keys_file", "server_tls_key_file")
NEEDS_USERS = ("plain", "md5", "scram-sha-256")
VERIFY = ("verify-ca", "verify-full")
TLS_ONLY = ("require", *VERIFY)
OTHER_DEFAULTS = {"pool_mode": "session", "auth_type": "md5"}
"""PgBouncer's defaults, where they are not ours."""
RESERVED = "pgbouncer"  # the admin console's database
NEEDS_CERTIFICATE = (
    "quic_key_file",
    "quic_client_ca_file",
    "quic_listen_addr",
    "quic_listen_port",
    "quic_qlog_dir",
    "quic_ticket_keys_file",
)


@dataclass(frozen=True, slots=True)
class Checks:
    """The questions to ask of one configuration."""

    path: str
    """The file that was loaded, to name where no line is to blame."""
    reading: Reading
    config: Config

    def at(self, key: str) -> Source:
        """Where a key of the main section was set."""
        return self.reading.sources.get(key, Source(self.path))

    @property
    def _users_are_looked_up(self) -> bool:
        """Whether auth_query may find users that auth_file has not."""
        entries = self.reading.entries["databases"].values()
        return self.config.auth_user is not None or any("auth_user" in entry.values for entry in entries)

    def _entries_with_tls(self) -> Iterator[tuple[str, Entry]]:
        """Entries that may have settings of TLS of their own, each with what it is called."""
        for section, noun in (("databases", "database"), ("peers", "peer")):
            for entry in self.reading.entries[section].values():
                yield f"{noun} {quoted(entry.name)}", entry

    def between_keys(self) -> Iterator[ConfigError]:
        """Errors between keys. Only for files whose lines are right: what is missing may be what is misspelt."""
        if self.reading.main_section is None:
            yield Source(self.path).error("there is no section [pgtrunk], which [pgbouncer] is another name of")
            return
        yield from self._databases()
        yield from self._fronts()
        yield from self._quic()
        yield from self._client_tls()
        yield from self._server_tls()
        yield from self._login()

    def _databases(self) -> Iterator[ConfigError]:
        entries = self.reading.entries["databases"]
        if not entries:
            yield Source(self.path).error("[databases] has no entry; add one, such as: shop = host=127.0.0.1 port=5432")
        for entry in entries.values():
            label = f"database {quoted(entry.name)}"
            hosts, ports = entry.values.get("host", ()), entry.values.get("port", ())
            if len(ports) not in (0, 1, len(hosts)):
                count = f"{len(ports)} ports for {len(hosts) or 'no'} hosts"
                yield entry.source.error(f"{label}: port: {count}; give one for all, or one for each")
            if self.config.unix_socket_dir is None and not hosts and "patroni" not in entry.values:
                yield entry.source.error(f"{label} has no host, and unix_socket_dir, its default, is empty")

    def _fronts(self) -> Iterator[ConfigError]:
        config = self.config
        if not (config.listen_addr or config.unix_socket_dir or config.quic_enabled):
            fronts = "listen_addr (TCP), quic_cert_file and quic_key_file (QUIC), or unix_socket_dir"
            yield self.at("unix_socket_dir").error(f"nothing to listen on: set {fronts}")

    def _quic(self) -> Iterator[ConfigError]:
        config, where = self.config, self.at("quic_cert_file")
        if not config.quic_enabled:
            for key in NEEDS_CERTIFICATE:
                if self.reading.main.get(key):
                    yield self.at(key).error(f"{key} is set, but not quic_cert_file, without which there is no QUIC")
            return
        if config.quic_key_file is None:
            yield where.error("quic_cert_file is set, but not quic_key_file: QUIC needs both")
        if not config.quic_listen_addr:
            yield where.error("quic_cert_file is set, but no address: set quic_listen_addr or listen_addr")
        if config.quic_memory_budget < config.quic_connection_budget:
            budgets = f"{config.quic_memory_budget} bytes, less than quic_connection_budget"
            yield self.at("quic_memory_budget").error(
                f"quic_memory_budget is {budgets} with {config.quic_connection_budget}: one connection could use up all"
            )

    def _client_tls(self) -> Iterator[ConfigError]:
        config, where = self.config, self.at("client_tls_sslmode")
        mode = f"client_tls_sslmode is {config.client_tls_sslmode}"
        if config.client_tls_sslmode == "disable":
            return
        for key in ("client_tls_key_file", "client_tls_cert_file"):
            if getattr(config, key) is None:
                yield where.error(f"{mode}, but {key} is not set: TLS needs both")
        if config.client_tls_sslmode in VERIFY and config.client_tls_ca_file is None:
            yield where.error(f"{mode}, but client_tls_ca_file is not set: nothing can be verified")

    def _server_tls(self) -> Iterator[ConfigError]:
        config = self.config
        pairs = [("", self.at("server_tls_key_file"), config.server_tls_cert_file, config.server_tls_key_file)]
        for label, entry in self._entries_with_tls():
            files = [entry.values.get(key, getattr(config, key)) for key in TLS_FILES[1:]]
            pairs.append((f"{label}: ", entry.source, files[0], files[1]))
        if (pairs[0][2] is None) != (pairs[0][3] is None):
            pairs = pairs[:1]
        for label, source, cert, key in pairs:
            if (cert is None) != (key is None):
                yield source.error(f"{label}server_tls_cert_file and server_tls_key_file need each other")

    def _login(self) -> Iterator[ConfigError]:
        config = self.config
        if config.auth_type in NEEDS_USERS and config.auth_file is None and not self._users_are_looked_up:
            yield self.at("auth_type").error(
                f"auth_type is {config.auth_type}, but auth_file is not set: no user could log in"
            )
        if config.auth_dbname == RESERVED:
            yield self.at("auth_dbname").error(f'cannot use the reserved "{RESERVED}" database as an auth_dbname')
        asked = config.quic_client_ca_file is not None or config.client_tls_sslmode in VERIFY
        if config.auth_type == "cert" and not asked:
            shown = "quic_client_ca_file (QUIC), or client_tls_sslmode = verify-full (TCP)"
            yield self.at("auth_type").error(f"auth_type is cert, but no client has to show one: set {shown}")
        if config.auth_type != "any":
            return
        for entry in self.reading.entries["databases"].values():
            if "user" not in entry.values:
                label = f"database {quoted(entry.name)}"
                yield entry.source.error(f"auth_type is any, but {label} has no user= to log in to Postgres with")

    def of_disk(self) -> Iterator[ConfigError]:
        """Errors about files and directories that are named and cannot be used."""
        config = self.config
        for key in READABLE:
            path = getattr(config, key)
            if path is not None and (reason := _unreadable(path)):
                yield self.at(key).error(f"{key}: cannot read {quoted(path)}: {reason}")
        for label, entry in self._entries_with_tls():
            for key in TLS_FILES:
                path = entry.values.get(key)
                if path is not None and (reason := _unreadable(path)):
                    yield entry.source.error(f"{label}: {key}: cannot read {quoted(path)}: {reason}")
        directory = config.unix_socket_dir
        if directory and not directory.startswith("@") and (reason := _no_place_for_socket(directory)):
            hint = "an empty unix_socket_dir does without a unix socket"
            yield self.at("unix_socket_dir").error(f"unix_socket_dir: {quoted(directory)} {reason}; {hint}")
        group = config.unix_socket_group
        if group and not _group_exists(group):
            yield self.at("unix_socket_group").error(f"unix_socket_group: this system has no group {quoted(group)}")

    def remarks(self) -> Iterator[Remark]:
        """What differs from PgBouncer or from what was likely meant, and secrets that lie open."""
        yield from self._other_defaults()
        if self.config.auth_type == "trust" and self.config.auth_file is None:
            yield Remark(
                self.at("auth_type"), "auth_type: trust without auth_file lets every user name in", serious=True
            )
        in_clear = self.config.listen_addr and self.config.client_tls_sslmode not in TLS_ONLY
        if self.config.auth_type == "plain" and in_clear:
            words = "auth_type: plain sends passwords over TCP in clear, unless client_tls_sslmode is require"
            yield Remark(self.at("auth_type"), words, serious=True)
        if "auth_query" in self.reading.main and not self._users_are_looked_up:
            yield Remark(self.at("auth_query"), "auth_query: not used without auth_user", serious=True)
        for entry in self.reading.entries["databases"].values():
            label = f"database {quoted(entry.name)}"
            if "auth_query" in entry.values and not (self.config.auth_user or "auth_user" in entry.values):
                yield Remark(entry.source, f"{label}: auth_query: not used without auth_user", serious=True)
            if "password" in entry.values and "user" not in entry.values:
                yield Remark(entry.source, f"{label}: password: not used without user=", serious=True)
        if self.config.peers and not self.config.peer_id:
            for entry in self.reading.entries["peers"].values():
                label = f"peer {quoted(entry.name)}"
                yield Remark(entry.source, f"{label}: no cancel is forwarded to it without peer_id", serious=True)
        yield from self._open_secrets()

    def _other_defaults(self) -> Iterator[Remark]:
        """What a file that was written for PgBouncer leaves to a default that is another one here."""
        header = self.reading.main_section
        if header is None or header.name != "pgbouncer":
            return
        for key, theirs in OTHER_DEFAULTS.items():
            if key not in self.reading.main:
                ours = getattr(self.config, key)
                message = f"{key}: not set, which is {theirs} in PgBouncer, and {ours} here"
                yield Remark(header.source, message, serious=True)

    def _open_secrets(self) -> Iterator[Remark]:
        entries = self.reading.entries["databases"].values()
        for path in dict.fromkeys(entry.source.path for entry in entries if "password" in entry.values):
            if _world_readable(path):
                yield Remark(Source(path), "holds a password, and every user of this machine may read it", serious=True)
        for key in SECRET:
            path = getattr(self.config, key)
            if path is not None and _world_readable(path):
                message = f"{key}: every user of this machine may read {quoted(path)}"
                yield Remark(self.at(key), message, serious=True)


def _unreadable(path: str) -> str:
    # Not opened: that would wait at a pipe, and take from it what is to be read later.
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    if stat.S_ISDIR(mode):
        return os.strerror(errno.EISDIR)
    return "" if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def _no_place_for_socket(directory: str) -> str:
    if not os.path.isdir(directory):
        return "is not a directory" if os.path.lexists(directory) else "does not exist"
    return "" if os.access(directory, os.W_OK | os.X_OK) else "is not writable"


def _group_exists(name: str) -> bool:
    try:
        import grp
    except ImportError:  # no groups on Windows, and no unix sockets either
        return False
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _world_readable(path: str) -> bool:
    try:
        return os.name == "posix" and bool(os.stat(path).st_mode & stat.S_IROTH)
    except (OSError, ValueError):
        return False
