"""From words to commands: what is one, what it takes, and what is told about what is none."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.console.calls import Act, Fake, Help, Look, Set, read
from pgtrunk_gateway.errors import GatewayError, InvalidCommand


def test_shows_go_by_both_names_in_any_case() -> None:
    first, second, third = read('SHOW VERSION; select version; show "Version"')
    assert isinstance(first, Look) and first.show.name == "VERSION"
    assert first == second == third


def test_help_and_the_settings_of_a_server_that_is_none() -> None:
    (first, second, third, fourth) = read("SHOW HELP; SHOW TimeZone; SET client_encoding TO 'x'; SHOW datestyle")
    assert isinstance(first, Help)
    assert isinstance(second, Fake) and not second.is_set and [column.name for column in second.columns] == ["timezone"]
    assert isinstance(third, Fake) and third.is_set and not third.columns
    assert isinstance(fourth, Fake)


@pytest.mark.parametrize(
    ("sql", "key", "value"),
    [
        ("SET default_pool_size = 5", "default_pool_size", "5"),
        ("set pool_mode=session;", "pool_mode", "session"),
        ("SET admin_users TO 'a, b'", "admin_users", "a, b"),
        ("SET auth_query = ''", "auth_query", ""),
        ('SET "verbose" = "1"', "verbose", "1"),
    ],
)
def test_set(sql: str, key: str, value: str) -> None:
    assert read(sql) == [Set(key, value)]


def test_a_value_may_be_a_secret() -> None:
    assert "hush" not in repr(read("SET auth_query = 'hush'"))


@pytest.mark.parametrize(
    ("sql", "name", "argument"),
    [
        ("PAUSE", "PAUSE", ""),
        ("pause P3x;", "PAUSE", "P3x"),
        ('RESUME "a b"', "RESUME", "a b"),
        ("SHUTDOWN", "SHUTDOWN", ""),
        ("shutdown wait_for_clients", "SHUTDOWN", "wait_for_clients"),
        ("DISABLE", "DISABLE", ""),
        ("KILL_CLIENT 0x1", "KILL_CLIENT", "0x1"),
    ],
)
def test_verbs(sql: str, name: str, argument: str) -> None:
    (call,) = read(sql)
    assert isinstance(call, Act) and (call.verb.name, call.argument) == (name, argument)


@pytest.mark.parametrize(
    "sql",
    [
        "nonsense", "SHOW", "SHOW nonsense", "SHOW version version", "SHOW 'version'", "SELECT 1", "'PAUSE'", "= 1",
        "PAUSE a b", "PAUSE 'a'", "RELOAD x", "SUSPEND x", "SHUTDOWN now", "SET", "SET a", "SET a b", "SET a =",
        "SET a = =", "SET 'a' = b", "SET a = b c", 'SET "" = b', "SET a FOR b", "help", "BEGIN",
    ],
)  # fmt: skip
def test_what_is_no_command(sql: str) -> None:
    with pytest.raises(InvalidCommand) as caught:
        read(f"SHOW VERSION; {sql}")
    assert caught.value.message == f"invalid command '{sql}', use SHOW HELP;"


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SHOW pool", "Did you mean SHOW POOLS?"),
        ("SHOW STAT", "Did you mean SHOW STATS?"),
        ("help", "Did you mean SHOW HELP?"),
        ("POOLS;", "Did you mean SHOW POOLS?"),
        ("relaod", "Did you mean RELOAD?"),
        ("SELECT n.nspname FROM pg_namespace n", "This is the gateway's console, which has commands of its own"),
        ("x" * 1_000_000, "This is the gateway's console, which has commands of its own"),
    ],
)
def test_what_was_likely_meant(sql: str, hint: str) -> None:
    with pytest.raises(InvalidCommand) as caught:
        read(sql)
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize("sql", ["PAUSE " + "a" * 64, "SET " + "a" * 64 + " = b", "SET a = '" + "b" * 256 + "'"])
def test_arguments_that_are_too_long(sql: str) -> None:
    with pytest.raises(GatewayError, match="bad arguments") as caught:
        read(sql)
    assert caught.value.sqlstate == "22023"
    assert read(sql.replace("aa", "a").replace("bb", "b"))
