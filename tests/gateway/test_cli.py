"""`pgtrunk-gateway`: what keeps it from starting is said with file and line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgtrunk_gateway import cli


def run(folder: Path, *lines: str) -> tuple[int, str]:
    ini = folder / "gateway.ini"
    ini.write_text("\n".join(["[databases]", "shop = host=127.0.0.1", "[pgtrunk]", "unix_socket_dir =", *lines, ""]))
    command = [sys.executable, "-m", "pgtrunk_gateway", "gateway.ini"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stderr


def test_a_taken_port_and_an_impossible_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = run(tmp_path, "auth_type = trust", "listen_addr = 127.0.0.1", f"listen_port = {port}")
    assert code == 1
    assert f"gateway.ini:7: listen_port: cannot listen on TCP 127.0.0.1 port {port}" in said
    code, said = run(tmp_path, "auth_type = trust", "listen_port = 0", "listen_addr = a..b")
    assert code == 1
    assert "gateway.ini:6: listen_port: cannot listen on TCP a..b port 0" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("content", ["", "no number", "-1", "0", str(os.getpid()), str(1 << 40)])
def test_a_pid_file_that_names_no_other_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert cli._running(str(tmp_path / "pid")) is None


def test_a_pid_file_of_somebody_who_runs(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getppid()))
    assert cli._running(str(tmp_path / "pid")) == os.getppid()
