"""Gives up root: the key ``user``, and -u, by which the process becomes somebody else before it opens anything.

As in PgBouncer that comes first, so that log, pid file and unix socket belong to that user, who must be able to open
them again after a rotation, and to read certificates anew at a reload. Ports below 1024 are out of reach then.
"""

from __future__ import annotations

import os
import sys

from pgtrunk_gateway.errors import ConfigError

__all__ = ["assume", "check_program"]


def assume(user: str) -> None:
    """Becomes ``user``, with its groups and no others. Raises :class:`ConfigError` where that cannot be."""
    try:
        import pwd
    except ImportError:
        raise ConfigError("user: this system has none to become") from None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(f'user: this system has no user "{user}"') from None
    if os.geteuid() == entry.pw_uid:
        return
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError as error:
        raise ConfigError(f'user: cannot become "{user}": {error.strerror}; only root can') from error


def check_program(user: str) -> None:
    """Raises :class:`ConfigError` where ``user``, who this process is by now, may not run it: workers could not be
    started, nor modules be found that are imported later."""
    if sys.executable and not os.access(sys.executable, os.X_OK):
        raise ConfigError(
            f'user: "{user}" may not run {sys.executable}, by which the gateway runs: install it where all may read'
        )
