"""Where the backends of a pool connect, and as whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pgtrunk_gateway.config.entries import Place

if TYPE_CHECKING:
    from pgtrunk_gateway.auth import ScramKeys, Secret
    from pgtrunk_gateway.config.entries import LoadBalance, SessionAttrs
    from pgtrunk_gateway.tls import ServerTls

__all__ = ["Credentials", "Target", "Wish"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to log in at Postgres: by a password in clear, by an MD5 secret, or by a SCRAM secret and its ``keys``."""

    secret: Secret | None = field(default=None, repr=False)
    keys: ScramKeys | None = field(default=None, repr=False)
    """The keys behind a SCRAM secret (pass-through); without them it is of no use here."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Which of several servers a database wants, as the configuration has it. Databases that want the same share it."""

    places: tuple[Place, ...]
    """Those of ``host`` and ``port``; with ``patroni``, until that has answered."""
    attrs: SessionAttrs
    balance: LoadBalance
    patroni: tuple[str, ...] = ()
    """Where the servers' names come from."""

    @property
    def is_simple(self) -> bool:
        """Whether it is one server, whatever that is."""
        return len(self.places) == 1 and self.attrs == "any" and not self.patroni

    def __str__(self) -> str:
        if self.patroni:
            return f"the cluster of {self.patroni[0]}"
        return ",".join(f"{place.host}:{place.port}" for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One Postgres database and the login for it."""

    host: str
    """Name or address; a directory of unix sockets where it begins with "/" or "@". Of a list, the first."""
    port: int
    dbname: str
    user: str
    wish: Wish | None = None
    """Which servers it may be at, where that is to be found out; no connection leads here then, but :meth:`at` one."""
    secret: Secret | None = field(default=None, repr=False)
    """What the configuration has to log in with; None: nothing."""
    tls: ServerTls | None = None
    """How it is spoken to over TCP; None: in clear."""
    settings: tuple[tuple[str, str], ...] = ()
    """What goes into the startup packet beside the names (application_name and their like in [databases])."""
    entrusted: Credentials | None = field(default=None, repr=False, compare=False)
    """What a client of this user has logged in with; see :meth:`entrust`."""

    @property
    def credentials(self) -> Credentials:
        """What to log in with. The configuration's own word comes first; a client may know the password behind it."""
        entrusted = self.entrusted
        if entrusted is not None and self.secret in (None, entrusted.secret):
            return entrusted
        return Credentials(self.secret)

    def entrust(self, secret: Secret, keys: ScramKeys | None) -> Target:
        """The same, after a client has logged in as this user, whose secret is ``secret``.

        ``keys`` are those behind it where the client has proved them. They are kept for as long as the secret is the
        same: a later login without proof does not take them away, one with another secret does.
        """
        before = self.entrusted
        if keys is None and before is not None and before.secret == secret:
            return self
        return replace(self, entrusted=Credentials(secret, keys))

    def succeeding(self, before: Target) -> Target:
        """The same, taking the place of ``before`` after a reload: what clients have proved counts on if it can."""
        if (self.user, self.secret) != (before.user, before.secret):
            return self
        return replace(self, entrusted=before.entrusted)

    def at(self, place: Place) -> Target:
        """The same, at one server of the list."""
        return replace(self, host=place.host, port=place.port, wish=None)

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.host, self.port)

    @property
    def unix_path(self) -> str | None:
        """The unix socket, None for TCP. An abstract one ("@...") begins with a zero octet for the kernel."""
        if self.host.startswith("@"):
            return f"\0{self.host[1:]}/.s.PGSQL.{self.port}"
        return f"{self.host}/.s.PGSQL.{self.port}" if self.host.startswith("/") else None

    def __str__(self) -> str:
        if self.wish is not None:
            return str(self.wish)
        return self.unix_path or f"{self.host}:{self.port}"
