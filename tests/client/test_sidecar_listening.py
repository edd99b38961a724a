"""Who can reach a sidecar's sockets, and what becomes of sockets that are there already."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pgtrunk.errors import UsageError
from pgtrunk.sidecar.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from pgtrunk.sidecar.listening import Listener, _locked, listen


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a path that is short enough for a unix socket, and that nobody else can reach."""
    with tempfile.TemporaryDirectory(prefix="sc-") as path:
        yield Path(path)


@asynccontextmanager
async def listening(endpoint: Endpoint, *, allow_remote: bool = False) -> AsyncIterator[Listener]:
    listener = await listen(endpoint, asyncio.Protocol, allow_remote=allow_remote)
    try:
        yield listener
    finally:
        listener.close()


async def connects(endpoint: Endpoint) -> bool:
    loop = asyncio.get_running_loop()
    try:
        if isinstance(endpoint, UnixEndpoint):
            transport, _ = await loop.create_unix_connection(asyncio.Protocol, endpoint.path)
        else:
            transport, _ = await loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    transport.abort()
    await asyncio.sleep(0)
    return True


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def shared(folder: Path, request: pytest.FixtureRequest) -> Path:
    """The folder, with another mode."""
    folder.chmod(request.param)
    return folder


# -- unix sockets ------------------------------------------------------------------------------------------------------


async def test_a_folder_is_made_for_its_owner_alone(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder / "run"), 5433)
    async with listening(endpoint) as listener:
        assert listener.endpoints == (endpoint,)
        assert (mode(folder / "run"), mode(endpoint.path)) == (0o700, 0o600)
        assert await connects(endpoint)
    assert not os.listdir(folder / "run")


@pytest.mark.parametrize("shared", [0o720, 0o702, 0o1777], indirect=True)
async def test_a_folder_that_others_may_write_to_is_refused(shared: Path) -> None:
    with pytest.raises(UsageError, match=f"can be written to by others .mode {mode(shared):04o}.*: chmod 700"):
        await listen(UnixEndpoint(str(shared)), asyncio.Protocol, allow_remote=False)


@pytest.mark.parametrize("shared", [0o755], indirect=True)
async def test_a_folder_that_others_may_look_into_is_not(shared: Path) -> None:
    async with listening(UnixEndpoint(str(shared))):
        assert mode(UnixEndpoint(str(shared)).path) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a folder to somebody else")
async def test_a_folder_of_somebody_else_is_refused(folder: Path) -> None:
    os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        await listen(UnixEndpoint(str(folder)), asyncio.Protocol, allow_remote=False)


async def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await listen(UnixEndpoint(str(folder / "no" / "such")), asyncio.Protocol, allow_remote=False)
    (folder / "file").touch()
    with pytest.raises(FileExistsError):
        await listen(UnixEndpoint(str(folder / "file")), asyncio.Protocol, allow_remote=False)


async def test_a_path_that_is_too_long(folder: Path) -> None:
    with pytest.raises(UsageError, match="about 100 octets at most"):
        await listen(UnixEndpoint(str(folder / ("x" * 100))), asyncio.Protocol, allow_remote=False)


async def test_a_socket_that_a_dead_process_left_is_replaced(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(endpoint.path)
    async with listening(endpoint):
        assert await connects(endpoint)


async def test_a_socket_in_use_is_not(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder))
    async with listening(endpoint):
        with pytest.raises(OSError, match="somebody listens there already"):
            await listen(endpoint, asyncio.Protocol, allow_remote=False)
        assert await connects(endpoint)


async def test_what_is_no_socket_is_kept(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder))
    os.mkdir(endpoint.path)
    with pytest.raises(OSError, match="is no socket"):
        await listen(endpoint, asyncio.Protocol, allow_remote=False)
    assert os.listdir(folder) == [".s.PGSQL.5432"]


async def test_two_that_start_at_once_do_not_replace_each_other(folder: Path) -> None:
    with _locked(str(folder)), pytest.raises(OSError, match="another sidecar is starting"):
        await listen(UnixEndpoint(str(folder)), asyncio.Protocol, allow_remote=False)


async def test_the_successors_socket_is_left_alone(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder))
    async with listening(endpoint) as first:
        os.rename(endpoint.path, folder / "aside")
        async with listening(endpoint):
            first.close()
            assert await connects(endpoint)


# -- TCP ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_loopback(host: str) -> None:
    async with listening(TcpEndpoint(host, 0)) as listener:
        assert listener.endpoints
        for endpoint in listener.endpoints:
            assert isinstance(endpoint, TcpEndpoint)
            assert endpoint.port > 0
            assert await connects(endpoint)
    assert not await connects(endpoint)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
async def test_beyond_loopback_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=r"from other machines.*--dangerously-allow-remote-clients"):
        await listen(TcpEndpoint(host, 0), asyncio.Protocol, allow_remote=False)


async def test_beyond_loopback_when_it_is_asked_for() -> None:
    async with listening(TcpEndpoint("0.0.0.0", 0), allow_remote=True) as listener:
        assert await connects(TcpEndpoint("127.0.0.1", listener.endpoints[0].port))


async def test_a_host_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"host 'a\.\.b' of a\.\.b:0 cannot be resolved"):
        await listen(TcpEndpoint("a..b", 0), asyncio.Protocol, allow_remote=False)


async def test_a_port_in_use() -> None:
    async with listening(TcpEndpoint("127.0.0.1", 0)) as listener:
        with pytest.raises(OSError, match="in use"):
            await listen(listener.endpoints[0], asyncio.Protocol, allow_remote=False)
