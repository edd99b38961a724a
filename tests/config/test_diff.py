"""A reload as a value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtrunk_gateway.config import Changes, Config, DatabaseConfig, PeerConfig, UserConfig, diff
from pgtrunk_gateway.config.entries import Place

SHOP = DatabaseConfig(name="shop", host="a", password="x", user="app")
OLD = Config(databases={"shop": SHOP})


def test_nothing_changed() -> None:
    assert diff(OLD, replace(OLD, databases={"shop": replace(SHOP)})) == Changes()
    assert not diff(OLD, OLD)


def test_settings_say_what_and_whether_a_restart_is_needed() -> None:
    changes = diff(OLD, replace(OLD, listen_port=5433, query_wait_timeout=0.5, quic_cert_file="c.pem"))
    assert [str(change) for change in changes.settings] == [
        "listen_port: 6432 -> 5433",
        "query_wait_timeout: 120 -> 0.5",
        "quic_cert_file: (not set) -> c.pem",
    ]
    assert [change.key for change in changes.needs_restart] == ["listen_port"]
    assert changes


@pytest.mark.parametrize(
    ("changed", "moved"),
    [
        (replace(SHOP, host="b"), ("shop",)),
        (replace(SHOP, port=1), ("shop",)),
        (replace(SHOP, user="other"), ("shop",)),
        (replace(SHOP, dbname="other"), ("shop",)),
        (replace(SHOP, others=(Place("b", 5432),)), ("shop",)),
        (replace(SHOP, target_session_attrs="primary"), ("shop",)),
        (replace(SHOP, patroni=("http://p",)), ("shop",)),
        (replace(SHOP, pool_size=1), ()),
        (replace(SHOP, password="y"), ()),
    ],
)
def test_databases_that_changed(changed: DatabaseConfig, moved: tuple[str, ...]) -> None:
    changes = diff(OLD, replace(OLD, databases={"shop": changed}))
    assert changes == Changes(databases_changed=("shop",), databases_moved=moved)


def test_naming_the_database_that_was_meant_anyway_moves_nothing() -> None:
    changes = diff(OLD, replace(OLD, databases={"shop": replace(SHOP, dbname="shop")}))
    assert changes.databases_moved == ()


def test_databases_that_come_and_go() -> None:
    new = replace(OLD, databases={"b": DatabaseConfig(name="b")}, any_database=DatabaseConfig(name="*"))
    assert diff(OLD, new) == Changes(databases_added=("*", "b"), databases_removed=("shop",))


def test_users_and_peers() -> None:
    new = replace(OLD, users={"app": UserConfig(name="app", pool_size=1)}, peers={2: PeerConfig(peer_id=2, host="x")})
    assert diff(OLD, new) == Changes(users_changed=("app",), peers_changed=(2,))


def test_the_log_has_a_line_for_each() -> None:
    databases = {"shop": replace(SHOP, password="hush"), "b": DatabaseConfig(name="b")}
    new = replace(OLD, listen_port=5433, databases=databases, users={"app": UserConfig(name="app", pool_size=1)})
    assert list(diff(OLD, new).lines()) == [
        "listen_port: 6432 -> 5433",
        'database "b": added',
        'database "shop": changed',
        'user "app": changed',
    ]
    assert list(diff(new, replace(new, databases={"b": databases["b"]})).lines()) == ['database "shop": removed']
