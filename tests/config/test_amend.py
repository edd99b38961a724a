"""What a reload may apply, and what SET makes of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgtrunk_gateway.config import Loaded, load
from pgtrunk_gateway.config.amend import keep_until_restart, set_key
from pgtrunk_gateway.errors import GatewayError

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "[pgtrunk]\nauth_file = users.txt\nlisten_addr = ::1\n"


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.txt").touch(mode=0o600)
    return loaded("unix_socket_dir = @one\nlisten_port = 7000\npool_mode = session\n")


def loaded(more: str) -> Loaded:
    with open("g.ini", "w", encoding="ascii") as file:
        file.write(f"[databases]\nshop =\n{MAIN}{more}")
    return load("g.ini")


def test_a_reload_keeps_what_needs_a_restart_and_what_follows_from_it(running: Loaded) -> None:
    kept = keep_until_restart(running, loaded("unix_socket_dir = @two\nlisten_backlog = 5\npool_mode = statement\n"))
    config = kept.config
    assert (config.unix_socket_dir, config.listen_port, config.listen_backlog) == ("@one", 7000, 128)
    assert config.quic_listen_port == 7000
    # Where Postgres is looked for when an entry has no host.
    assert config.databases["shop"].host == "@one"
    assert config.pool_mode == "statement"
    assert str(kept.at("listen_port")) == "g.ini:7"


def test_a_reload_opens_no_front(running: Loaded) -> None:
    quic = loaded("quic_cert_file = users.txt\nquic_key_file = users.txt\n")
    assert quic.config.quic_enabled
    assert not keep_until_restart(running, quic).config.quic_enabled
    assert keep_until_restart(quic, running).config.quic_enabled
    other = loaded("quic_cert_file = g.ini\nquic_key_file = users.txt\n")
    assert keep_until_restart(quic, other).config.quic_cert_file == "g.ini"


def test_set(running: Loaded) -> None:
    changed = set_key(running, "query_wait_timeout", "1.5")
    assert changed.config.query_wait_timeout == 1.5
    assert running.config.query_wait_timeout == 120.0
    assert changed.remarks == ()
    assert str(changed.at("query_wait_timeout")) == "SET"
    again = set_key(changed, "admin_users", "ops, dba")
    assert (again.config.query_wait_timeout, again.config.admin_users) == (1.5, ("ops", "dba"))


@pytest.mark.parametrize(
    ("key", "value", "sqlstate", "detail"),
    [
        ("pool_mod", "session", "42704", 'unknown key "pool_mod"; did you mean "pool_mode"?'),
        ("listen_port", "1", "55P02", "listen_port can only be changed in the file, and by a restart"),
        ("dns_max_ttl", "1", "0A000", "dns_max_ttl is known, not acted on yet"),
        ("pool_mode", "x", "22023", 'pool_mode: bad value "x": expected one of session, transaction, statement'),
        ("auth_file", "none", "22023", 'auth_file: cannot read "none": No such file or directory'),
        (
            "quic_cert_file",
            "users.txt",
            "55P02",
            "quic_cert_file opens or closes the QUIC front, which needs a restart",
        ),
    ],
)
def test_what_cannot_be_set(running: Loaded, key: str, value: str, sqlstate: str, detail: str) -> None:
    with pytest.raises(GatewayError) as caught:
        set_key(running, key, value)
    error = caught.value
    assert (error.message, error.sqlstate, error.detail, error.severity) == ("SET failed", sqlstate, detail, "ERROR")


def test_keys_that_need_others_may_be_set_one_after_the_other(running: Loaded) -> None:
    changed = set_key(running, "client_tls_sslmode", "require")
    assert [str(remark) for remark in changed.remarks] == [
        "SET: client_tls_sslmode is require, but client_tls_key_file is not set: TLS needs both",
        "SET: client_tls_sslmode is require, but client_tls_cert_file is not set: TLS needs both",
    ]
    changed = set_key(changed, "client_tls_key_file", "users.txt")
    assert len(changed.remarks) == 1
    assert set_key(changed, "client_tls_cert_file", "users.txt").remarks == ()
