"""The file of a unix socket: whose it is, and whether anybody listens there."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

__all__ = ["SocketFile", "identity", "is_listened_at"]


class SocketFile:
    """The name of a bound unix socket, for as long as it is its own: another gateway may take it. One that begins with
    "@" is abstract, and has no file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = None if path.startswith("@") else identity(path)

    def offer(self) -> None:
        """The next gateway may have the name."""
        if self._is_ours():
            # Not every system lets everyone do that; there the name is free at the end.
            with contextlib.suppress(OSError):
                os.chmod(self.path, stat.S_IMODE(os.stat(self.path).st_mode) | stat.S_ISVTX)

    def remove(self) -> None:
        """To be called while somebody listens, or the next gateway could take the name in between, and lose it here."""
        if self._is_ours():
            # One that cannot be removed is found to be nobody's, as that of a process that was killed.
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _is_ours(self) -> bool:
        return self._file is not None and identity(self.path) == self._file


def identity(path: str) -> tuple[int, int] | None:
    """Which file that is; None: there is none, or none that can be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_listened_at(path: str) -> bool:
    """Whether a process listens at that socket. Raises OSError where that cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Who listens may be stuck, and would then let the probe wait as long.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            pass
    return True
