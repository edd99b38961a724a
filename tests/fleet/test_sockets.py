"""All that a fleet listens on: opened in order, on one port, and nothing of it left open or behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pgtrunk.certs import create_certificates
from pgtrunk_gateway.config.load import Loaded, load
from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet.sockets import Sockets


def loaded(folder: Path, **settings: object) -> Loaded:
    """With TCP on free ports, the unix socket, and what else ``settings`` have."""
    defaults: dict[str, object] = {
        "listen_addr": "127.0.0.1, 127.0.0.2",
        "listen_port": 0,
        "unix_socket_dir": folder,
        "auth_type": "trust",
    }
    ini = folder / "gateway.ini"
    lines = [f"{key} = {value}" for key, value in (defaults | settings).items()]
    ini.write_text("\n".join(["[databases]", "shop = host=127.0.0.1", "[pgtrunk]", *lines, ""]))
    return load(ini)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def socket_files(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".s.")]


async def test_each_worker_has_its_own(tmp_path: Path) -> None:
    files = create_certificates(tmp_path / "certs")
    configuration = loaded(tmp_path, quic_cert_file=files.server_cert, quic_key_file=files.server_key)
    before = open_files()
    sockets = await Sockets.open(configuration, 3)
    assert [len(own) for own in sockets.udp] == [2, 2, 2]
    for each in range(2):
        assert len({own[each].getsockname() for own in sockets.udp}) == 1
    assert len({sock.getsockname()[1] for sock in sockets.tcp}) == 1
    assert sockets.tcp_addresses == (f"127.0.0.1:{sockets.port}", f"127.0.0.2:{sockets.port}")
    assert sockets.unix_addresses == (f"{tmp_path}/.s.PGSQL.{sockets.port}",)
    assert len(sockets.hands) == len(sockets.forward) == 3
    for address in sockets.udp_addresses:
        assert address.rpartition(":")[2] == str(sockets.udp[0][0].getsockname()[1])
    # Whoever comes too early waits.
    with socket.socket(socket.AF_UNIX) as early:
        early.connect(sockets.unix_addresses[0])
    sockets.close()
    assert open_files() == before
    assert socket_files(tmp_path) == []


async def test_without_quic_there_are_no_datagrams(tmp_path: Path) -> None:
    sockets = await Sockets.open(loaded(tmp_path), 2)
    assert sockets.udp == [[], []]
    assert sockets.udp_addresses == ()
    sockets.close()


async def test_what_is_taken_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = open_files()
        with pytest.raises(ConfigError, match=f"listen_port: cannot listen on TCP .* port {port}: Address"):
            await Sockets.open(loaded(tmp_path, listen_port=port), 2)
        assert open_files() == before
    (tmp_path / f".s.PGSQL.{port}").write_text("no socket")
    with pytest.raises(ConfigError, match="unix_socket_dir: cannot listen on unix"):
        await Sockets.open(loaded(tmp_path, listen_port=port, listen_addr=""), 2)
    assert open_files() == before - 1
    assert (tmp_path / f".s.PGSQL.{port}").read_text() == "no socket"


async def test_tcp_ends_before_the_rest_and_the_name_may_be_had(tmp_path: Path) -> None:
    sockets = await Sockets.open(loaded(tmp_path), 2)
    sockets.close_tcp()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", sockets.port))
    sockets.offer_name()
    following = await Sockets.open(loaded(tmp_path, listen_port=sockets.port), 2)
    sockets.close()
    # The next one's, by now.
    assert socket_files(tmp_path) == [f".s.PGSQL.{sockets.port}"]
    following.close()
    assert socket_files(tmp_path) == []
