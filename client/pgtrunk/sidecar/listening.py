"""Local listening sockets that only those can reach who may: a unix socket of its owner's alone, TCP on loopback.

A folder that others may write to is refused, since they could put a socket of their own in ours's place and be told
passwords. A socket that a dead process left is replaced, one in use is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import stat
from typing import TYPE_CHECKING, Any, TypeAlias

from pgtrunk.errors import UsageError
from pgtrunk.sidecar.endpoint import TcpEndpoint, UnixEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgtrunk.sidecar.endpoint import Endpoint

__all__ = ["Listener", "listen"]

BACKLOG = 1024
"""Drivers that may be connecting at once. libpq on a unix socket does not wait for room, it fails."""

PROBE_TIMEOUT = 1.0
"""Seconds that whoever listens at a socket has to take a connection before it counts as listening."""

Factory: TypeAlias = "Callable[[], asyncio.BaseProtocol]"


class Listener:
    """One listening server, at one endpoint."""

    def __init__(self, server: asyncio.Server, endpoints: tuple[Endpoint, ...], inode: int | None = None) -> None:
        self._server = server
        self._inode = inode
        self.endpoints = endpoints
        """Where it listens, with the ports that the system has chosen."""

    def close(self) -> None:
        """Accepts no more. The socket's file goes now, so that the next sidecar can have the place."""
        for endpoint in self.endpoints:
            if isinstance(endpoint, UnixEndpoint):
                # While we still listen: nobody can have replaced it between the look and the removal. A folder that is
                # gone, or that nobody may change any more, is no reason to go on listening.
                with contextlib.suppress(OSError):
                    if os.stat(endpoint.path).st_ino == self._inode:
                        os.unlink(endpoint.path)
        self._server.close()


async def listen(endpoint: Endpoint, factory: Factory, *, allow_remote: bool) -> Listener:
    """Listens, with a protocol of the factory for each connection.

    Raises `UsageError` for a place where nobody should listen, `OSError` for one that is not to be had.
    """
    if isinstance(endpoint, TcpEndpoint):
        return await _listen_tcp(endpoint, factory, allow_remote=allow_remote)
    return await _listen_unix(endpoint, factory)


# TCP.


async def _listen_tcp(endpoint: TcpEndpoint, factory: Factory, *, allow_remote: bool) -> Listener:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"host {endpoint.host!r} of {endpoint} cannot be resolved: {exc}") from exc
    hosts = list(dict.fromkeys(str(address[0]) for *_, address in found))
    if not allow_remote:
        for host in hosts:
            _require_loopback(host, endpoint)
    server = await loop.create_server(factory, hosts, endpoint.port, backlog=BACKLOG, start_serving=False)
    await _serve(server)
    return Listener(server, tuple(_tcp_endpoint(sock.getsockname()) for sock in server.sockets))


async def _serve(server: asyncio.Server) -> None:
    """Apart from its making: that lets the loop turn once, and what is cancelled meanwhile would listen for ever."""
    try:
        await server.start_serving()
    except BaseException:
        server.close()
        raise


def _require_loopback(host: str, endpoint: TcpEndpoint) -> None:
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise UsageError(
            f"{endpoint} can be reached from other machines, and what drivers say there is not encrypted: listen at "
            "127.0.0.1, or in a folder; --dangerously-allow-remote-clients does it all the same"
        )


def _tcp_endpoint(address: Any) -> TcpEndpoint:
    return TcpEndpoint(address[0], address[1])


# Unix sockets.


async def _listen_unix(endpoint: UnixEndpoint, factory: Factory) -> Listener:
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError(f"{endpoint.directory!r}: there are no unix sockets here; listen at 127.0.0.1:port")
    _prepare(endpoint.directory)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(endpoint.directory):
            _bind(sock, endpoint)
        sock.setblocking(False)
        inode = os.stat(endpoint.path).st_ino
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(factory, sock=sock, backlog=BACKLOG, start_serving=False)
        await _serve(server)
    except BaseException:
        sock.close()
        raise
    return Listener(server, (endpoint,), inode)


def _prepare(directory: str) -> None:
    """Makes the folder, or sees to it that nobody else can put a socket there."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        state = os.stat(directory)
        if not stat.S_ISDIR(state.st_mode):
            raise
        if state.st_mode & 0o022:
            raise UsageError(
                f"folder {directory} can be written to by others (mode {stat.S_IMODE(state.st_mode):04o}), who could "
                f"put a socket of their own there and be told passwords: chmod 700 {directory}, or choose another"
            ) from None
        if state.st_uid not in (0, os.geteuid()):
            raise UsageError(
                f"folder {directory} belongs to user {state.st_uid}, who could put another socket there and be told "
                "passwords: choose a folder of your own"
            ) from None


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Of two sidecars that find the same stale socket, one replaces it; the other must not replace the new one."""
    import fcntl

    folder = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EADDRINUSE, "another sidecar is starting there", directory) from None
        yield
    finally:
        os.close(folder)


def _bind(sock: socket.socket, endpoint: UnixEndpoint) -> None:
    path = endpoint.path
    _remove_stale(path)
    try:
        sock.bind(path)
    except OSError as exc:
        if exc.errno is None:
            # Python's own complaint, which does not say where.
            raise UsageError(
                f"{path}: a unix socket's path has about 100 octets at most; choose another folder (a temporary "
                "one by TMPDIR)"
            ) from exc
        raise OSError(exc.errno, exc.strerror, path) from exc
    # Nobody can connect before it listens, so the mode is never too wide.
    os.chmod(path, 0o600)
    sock.listen(BACKLOG)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "is there already, and is no socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except (TimeoutError, BlockingIOError):
            raise _in_use(path) from None
        else:
            raise _in_use(path)


def _in_use(path: str) -> OSError:
    return OSError(errno.EADDRINUSE, "somebody listens there already", path)
