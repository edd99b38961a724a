"""Sessions over a unix socket, named as Postgres names its own: ``.s.PGSQL.<port>`` in ``unix_socket_dir``."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk_gateway.fronts.front import SessionFactory

__all__ = ["UnixFront"]


class UnixFront:
    """One listening unix socket; a directory that begins with "@" makes it abstract, without a file."""

    name = "unix"

    def __init__(self, server: asyncio.Server, path: str) -> None:
        self._server = server
        self._path = path
        self.addresses = [path]

    @classmethod
    async def listen(
        cls, directory: str, port: int, *, mode: int, group: str | None, backlog: int, session: SessionFactory
    ) -> UnixFront:
        """Raises OSError where the path is in use or cannot be made, LookupError for an unknown group."""
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
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(lambda: session("unix"), sock=sock, backlog=backlog)
        except BaseException:
            sock.close()
            raise
        return cls(server, path)

    def stop_accepting(self) -> None:
        if not self._server.is_serving():
            return
        self._server.close()
        # Now, while it is ours for certain: once nobody listens, the next gateway may take the name.
        if not self._path.startswith("@"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    async def close(self) -> None:
        self.stop_accepting()


def _remove_stale(path: str) -> None:
    """Removes the socket that a process left which is gone; raises OSError where somebody listens, or it is a file."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "is there already, and is no socket", path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Who listens may be stuck, and would then let the probe wait as long.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
