"""systemd is told how the gateway is; without it nothing is sent, and one that does not listen is no matter."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from pgtrunk_gateway.notify import Notifier

if TYPE_CHECKING:
    from pathlib import Path


def test_states(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}, clock=lambda: 5_000_999)
        notifier.ready()
        notifier.reloading()
        notifier.stopping()
        assert [manager.recv(100) for _ in range(3)] == [
            b"READY=1",
            b"RELOADING=1\nMONOTONIC_USEC=5000",
            b"STOPPING=1",
        ]


def test_who_the_service_is_after_an_online_restart(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        old, new = (Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}) for _ in range(2))
        old.ready()
        old.moved(77)
        old.stopping()
        new.took_over(77)
        new.ready()
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"MAINPID=77", b"READY=1\nMAINPID=77"]


def test_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")
        manager.settimeout(20)
        name = manager.getsockname().decode()
        Notifier({"NOTIFY_SOCKET": "@" + name[1:]}).ready()
        assert manager.recv(100) == b"READY=1"


def test_nobody_listens(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    Notifier({}).stopping()
