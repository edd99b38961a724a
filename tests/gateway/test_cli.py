"""`pgtrunk-gateway`: what keeps it from starting is said with file and line."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgtrunk.certs import create_certificates
from pgtrunk_gateway import cli, privileges


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


@pytest.mark.parametrize(
    "content", ["", "no number", "-1", "0", pytest.param(str(os.getpid()), id="our own"), str(1 << 40)]
)
def test_a_pid_file_that_names_no_other_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert cli._running(str(tmp_path / "pid")) is None


def test_a_pid_file_of_somebody_who_runs(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getppid()))
    assert cli._running(str(tmp_path / "pid")) == os.getppid()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: gateway.ini"),
        (["--nonsense", "g.ini"], "unrecognized arguments: --nonsense"),
        (["-d", "g.ini"], "-d is not supported"),
        (["--daemon", "g.ini"], "-d is not supported"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 1
    assert words in capsys.readouterr().err


def test_a_user_that_it_cannot_become(tmp_path: Path) -> None:
    code, said = run(tmp_path, "auth_type = trust", "listen_addr = 127.0.0.1", "user = no-such-user")
    assert (code, said) == (1, 'pgtrunk-gateway: user: this system has no user "no-such-user"\n')


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can become somebody else")
def test_it_becomes_another_user_before_it_looks_at_files(tmp_path: Path) -> None:
    ini = tmp_path / "gateway.ini"
    (tmp_path / "users.txt").touch(mode=0o600)
    ini.write_text("[databases]\nshop = host=::1\n[pgtrunk]\nunix_socket_dir = @pgtrunk-test\nauth_file = users.txt\n")
    tmp_path.chmod(0o755)
    command = [sys.executable, "-m", "pgtrunk_gateway", "-u", "nobody", "gateway.ini"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    # Root could have read it.
    assert "Permission denied" in done.stderr or "cannot be read" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user: root may become anybody")
def test_only_root_can_become_somebody_else(tmp_path: Path) -> None:
    code, said = run(tmp_path, "auth_type = trust", "listen_addr = 127.0.0.1", "user = root")
    assert code == 1
    assert 'user: cannot become "root": Operation not permitted; only root can' in said


def test_who_may_not_run_python_cannot_be_the_gateways_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As where Python is in root's home.
    python = tmp_path / "python"
    python.touch(mode=0o600)
    monkeypatch.setattr(sys, "executable", str(python))
    ini = tmp_path / "gateway.ini"
    me = pwd.getpwuid(os.geteuid()).pw_name
    ini.write_text(
        f"[databases]\nshop = host=::1\n[pgtrunk]\nauth_type = trust\nlisten_addr = 127.0.0.1\nuser = {me}\n"
    )
    assert cli.main([str(ini)]) == 1
    assert f'user: "{me}" may not run {python}' in capsys.readouterr().err


def test_to_stay_who_one_is_needs_no_rights() -> None:
    privileges.assume(pwd.getpwuid(os.geteuid()).pw_name)
