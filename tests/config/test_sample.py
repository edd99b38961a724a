"""A file made for PgBouncer loads as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgtrunk_gateway.config import Config, DatabaseConfig, Loaded, UserConfig, load

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    for sample in SAMPLES.iterdir():
        (tmp_path / sample.name).touch(mode=0o600)
        shutil.copyfile(sample, tmp_path / sample.name)
    monkeypatch.chdir(tmp_path)
    return load("pgbouncer.ini")


def test_settings(loaded: Loaded) -> None:
    assert loaded.config == Config(
        listen_addr=("127.0.0.1", "::1"),
        listen_port=6433,
        quic_listen_addr=("127.0.0.1", "::1"),
        quic_listen_port=6433,
        unix_socket_dir=None,
        logfile="pgbouncer.log",
        pidfile="pgbouncer.pid",
        auth_type="md5",
        auth_file="userlist.txt",
        admin_users=("postgres", "ops"),
        stats_users=("stats",),
        max_client_conn=2000,
        default_pool_size=40,
        min_pool_size=4,
        reserve_pool_size=5,
        reserve_pool_timeout=2.5,
        ignore_startup_parameters=("extra_float_digits", "options"),
        server_lifetime=1200.0,
        server_idle_timeout=60.5,
        query_wait_timeout=30.0,
        tcp_keepidle=60,
        log_connections=False,
        log_disconnections=False,
        stats_period=30,
        databases={
            "shop": DatabaseConfig(name="shop", host="10.1.2.3", dbname="shop_production"),
            "reports": DatabaseConfig(
                name="reports",
                host="10.1.2.4",
                user="reporter",
                password="quo'ted word",
                pool_size=4,
                max_db_connections=8,
            ),
            "old-shop": DatabaseConfig(
                name="old-shop",
                host="10.1.2.3",
                dbname="shop_2019",
                connect_query="set statement_timeout = '30s'",
            ),
        },
        any_database=DatabaseConfig(name="*", host="10.1.2.5"),
        users={"batch": UserConfig(name="batch", pool_size=2, max_user_connections=10, query_wait_timeout=600.0)},
    )


def test_remarks(loaded: Loaded) -> None:
    assert [(str(remark), remark.serious) for remark in loaded.remarks] == [
        ("pgbouncer.ini:68: dns_max_ttl: known, not acted on yet", False),
        ("pgbouncer.ini:70: disable_pqexec: known, not acted on yet", True),
        ("local.ini:5: syslog: known, not acted on yet", False),
    ]
