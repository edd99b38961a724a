"""Where the backends of a pool connect, and as whom."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One Postgres database and the login for it."""

    host: str
    """Name or address; a directory of unix sockets where it begins with "/" or "@"."""
    port: int
    dbname: str
    user: str
    password: str | None = field(default=None, repr=False)
    """In clear; None where the gateway has none."""

    @property
    def unix_path(self) -> str | None:
        """The unix socket, None for TCP. An abstract one ("@...") begins with a zero octet for the kernel."""
        if self.host.startswith("@"):
            return f"\0{self.host[1:]}/.s.PGSQL.{self.port}"
        return f"{self.host}/.s.PGSQL.{self.port}" if self.host.startswith("/") else None

    def __str__(self) -> str:
        return self.unix_path or f"{self.host}:{self.port}"
