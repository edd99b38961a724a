"""What a session may be told about where and how to connect: nothing, for the trunk has decided that.

A DSN or an argument that names a host would be obeyed by a driver and ignored here, so it is refused. Pure. It never
quotes a DSN in a message: the password is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from pgtrunk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_session_arguments"]

FORM = "postgresql://user:password@/database"

HARMLESS = ("disable", "allow", "prefer", "require")
"""Values of sslmode that promise no more than every trunk keeps: its connections are encrypted, always."""

VERIFYING = ("verify-ca", "verify-full")


def check_session_arguments(dsn: str | None, arguments: Mapping[str, object], *, gateway: str, verified: bool) -> None:
    """Raises `UsageError` for what contradicts the trunk, in the DSN or among asyncpg's keyword arguments.

    ``verified`` says whether the trunk checks the gateway's certificate.
    """
    in_dsn = _named_in(dsn)
    for name in ("host", "hostaddr", "port"):
        if in_dsn.get(name) or arguments.get(name) is not None:
            raise UsageError(
                f"a session of this trunk goes to gateway {gateway}, so its DSN and arguments name no {name} "
                f"(the form is {FORM}; an @ in a password is written %40)"
            )
    if "passfile" in in_dsn or arguments.get("passfile") is not None:
        raise UsageError("passfile is not read: its lines are chosen by host, and asyncpg takes a stream for localhost")
    for name in in_dsn:
        if name.startswith("ssl") and name != "sslmode":
            raise UsageError(f"{name} has no effect on a stream: give StreamManager ca_file=, cert_file= and key_file=")
    if arguments.get("direct_tls"):
        raise UsageError("direct_tls has no effect on a stream: the trunk's connections are TLS 1.3 from the start")
    for mode in (in_dsn.get("sslmode"), arguments.get("ssl")):
        _check_sslmode(mode, verified)


def _named_in(dsn: str | None) -> dict[str, str]:
    """Returns the host, under that name, and the options of a DSN. What asyncpg will refuse is left to it."""
    if dsn is None:
        return {}
    try:
        parts = urlsplit(dsn)
    except ValueError:
        # Python's own words quote what it could not read.
        raise UsageError(f"the DSN cannot be read (the form is {FORM})") from None
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    # The first @ ends the user's part for asyncpg, and all that follows is host.
    _, at, after = parts.netloc.partition("@")
    return {**options, "host": (after if at else parts.netloc) or options.get("host", "")}


def _check_sslmode(mode: object, verified: bool) -> None:
    name = "verify-full" if mode is True else mode.replace("_", "-") if isinstance(mode, str) else mode
    if not name or name in HARMLESS:
        return
    if name not in VERIFYING:
        raise UsageError(f"ssl={name!r} has no effect on a stream: its TLS is that of the trunk, see StreamManager")
    if not verified:
        raise UsageError(f"{name} is asked for, but this trunk was told not to verify the gateway's certificate")
