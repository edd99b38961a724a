"""Where a running supervisor and the next one meet: a unix socket beside the pidfile, or in unix_socket_dir.

Only who may write to it can connect, and either end looks whether the other is the same user, or root.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet.passing import peer
from pgtrunk_gateway.fronts.socket_file import identity, is_listened_at

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config

__all__ = ["Meeting", "check_peer", "meet", "point_of"]

_LONGEST: Final = 107
"""Octets of a unix socket's path (unix(7))."""
_MODE: Final = 0o600


def point_of(config: Config) -> str | None:
    """The socket's path; None: the configuration has no place for one."""
    if config.pidfile:
        return f"{config.pidfile}.takeover"
    if config.unix_socket_dir and not config.unix_socket_dir.startswith("@"):
        return f"{config.unix_socket_dir}/.s.PGTRUNK.{config.listen_port}"
    return None


class Meeting:
    """The running supervisor's end, listening. To be closed."""

    def __init__(self, path: str) -> None:
        """Raises OSError where the path is too long, in use, or cannot be made."""
        if len(os.fsencode(path)) > _LONGEST:
            raise OSError(f"the path has more than {_LONGEST} octets: {path}")
        _remove_stale(path)
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.setblocking(False)
            # Before it listens nobody can connect, whatever the umask.
            self.sock.bind(path)
            os.chmod(path, _MODE)
            self.sock.listen(4)
            self._file = identity(path)
        except BaseException:
            self.sock.close()
            raise

    def close(self) -> None:
        """The next one may have the name."""
        if self._file is not None and identity(self.path) == self._file:
            os.unlink(self.path)
        self.sock.close()


def meet(path: str, seconds: float) -> socket.socket | None:
    """A connection to the running supervisor; None: none is running. Blocks for ``seconds`` at most. Raises
    :class:`ConfigError` where it is not to be trusted, or is stuck."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        check_peer(sock)
    except OSError as error:
        sock.close()
        raise ConfigError(f"-R: cannot reach the running gateway by {path}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def check_peer(sock: socket.socket) -> int:
    """The pid at the other end. Raises PermissionError where it is another user's, but for root's."""
    pid, uid = peer(sock)
    if uid not in (0, os.geteuid()):
        raise PermissionError(f"pid {pid} at the other end belongs to user {uid}")
    return pid


def _remove_stale(path: str) -> None:
    """Removes the socket of a process that is gone; raises OSError where there is anything else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is there already, and is no socket")
    except FileNotFoundError:
        return
    if is_listened_at(path):
        raise OSError(f"another supervisor listens at {path}")
    os.unlink(path)
