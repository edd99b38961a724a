"""`pgtrunk-gateway`: what keeps it from starting is said with file and line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgtrunk.certs import create_certificates
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


def test_a_certificate_that_cannot_be_used_is_blamed_on_its_own_line(tmp_path: Path) -> None:
    ours, theirs = create_certificates(tmp_path / "a"), create_certificates(tmp_path / "b")
    (tmp_path / "junk.pem").write_text("junk")
    quic = ["auth_type = trust", "listen_addr = 127.0.0.1", "listen_port = 0", f"quic_cert_file = {ours.server_cert}"]
    code, said = run(tmp_path, *quic, f"quic_key_file = {theirs.server_key}")
    assert code == 1
    assert f'gateway.ini:9: quic_key_file "{theirs.server_key}" is not the key of the certificate' in said
    code, said = run(tmp_path, *quic, f"quic_key_file = {ours.server_key}", "quic_client_ca_file = junk.pem")
    assert code == 1
    assert 'gateway.ini:10: quic_client_ca_file "junk.pem" holds no certificate' in said
    code, said = run(tmp_path, *quic[:3], "quic_cert_file = missing.pem", f"quic_key_file = {ours.server_key}")
    assert code == 1
    assert 'gateway.ini:8: quic_cert_file: cannot read "missing.pem"' in said


@pytest.mark.parametrize("content", ["", "no number", "-1", "0", str(os.getpid()), str(1 << 40)])
def test_a_pid_file_that_names_no_other_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert cli._running(str(tmp_path / "pid")) is None


def test_a_pid_file_of_somebody_who_runs(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getppid()))
    assert cli._running(str(tmp_path / "pid")) == os.getppid()
