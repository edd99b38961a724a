"""Sessions over a unix socket, named as Postgres names its own: ``.s.PGSQL.<port>`` in ``unix_socket_dir``.

It listens until the gateway has ended, for the console's sake, as PgBouncer's does. A gateway that only drains marks
its socket by the sticky bit, which means nothing else on a socket: the next one may have the name.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import stat
from typing import TYPE_CHECKING

from pgtrunk_gateway.fronts.socket_file import SocketFile, is_listened_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fronts.front import SessionFactory

__all__ = ["UnixFront", "bind_unix"]


class UnixFront:
    """One listening unix socket; a directory that begins with "@" makes it abstract, without a file."""

    name = "unix"

    def __init__(self, server: asyncio.Server, file: SocketFile) -> None:
        self._server = server
        self._file = file
        self.addresses = [file.path]

    @classmethod
    async def listen(
        cls, directory: str, port: int, *, mode: int, group: str | None, backlog: int, session: SessionFactory
    ) -> UnixFront:
        """Raises OSError where the path is in use or cannot be made, LookupError for an unknown group."""
        sock, file = bind_unix(directory, port, mode=mode, group=group)
        try:
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(lambda: session("unix"), sock=sock, backlog=backlog)
        except BaseException:
            sock.close()
            raise
        return cls(server, file)

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        return lambda: None

    def drain(self) -> None:
        self._file.offer()

    def stop_accepting(self) -> None:
        if not self._server.is_serving():
            return
        self._file.remove()
        self._server.close()

    async def close(self) -> None:
        self.stop_accepting()


def bind_unix(directory: str, port: int, *, mode: int, group: str | None) -> tuple[socket.socket, SocketFile]:
    """A socket that is bound to its path there, and not listening yet, with its file. Raises OSError where the path is
    in use or cannot be made, LookupError for an unknown group."""
    path = f"{directory}/.s.PGSQL.{port}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.startswith("@"):
            sock.bind("\0" + path[1:])
        else:
            _remove_stale(path)
            sock.bind(path)
            os.chmod(path, mode)
            if group is not None:
                shutil.chown(path, group=group)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock, SocketFile(path)


def _remove_stale(path: str) -> None:
    """Removes the socket of a process that is gone, or about to go; raises OSError for any other, and for a file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "is there already, and is no socket", path)
    if not mode & stat.S_ISVTX and is_listened_at(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
    os.unlink(path)
