"""What is in force beside the files: how each command changes it, and when it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgtrunk_gateway.config.load import load, read_file
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.errors import ConfigError, GatewayError, NoSuchDatabase
from pgtrunk_gateway.fleet.standing import INVERSE, Standing, reader

CONFIG = Config(databases={name: DatabaseConfig(name=name) for name in ("a", "b")})
PAUSED = Standing(paused=True)
SUSPENDED = Standing(suspended=True)
ONE_PAUSED = Standing(paused_databases=frozenset({"a"}))


@pytest.mark.parametrize(
    ("before", "verb", "database", "after"),
    [
        (Standing(), "pause", None, PAUSED),
        (Standing(), "kill", None, PAUSED),
        (Standing(), "pause", "a", ONE_PAUSED),
        (Standing(), "kill", "a", ONE_PAUSED),
        (ONE_PAUSED, "pause", None, Standing(paused=True, paused_databases=frozenset({"a"}))),
        (PAUSED, "resume", None, Standing()),
        (SUSPENDED, "resume", None, Standing()),
        (ONE_PAUSED, "resume", "a", Standing()),
        (Standing(), "suspend", None, SUSPENDED),
        (Standing(), "disable", "b", Standing(disabled_databases=frozenset({"b"}))),
        (Standing(disabled_databases=frozenset({"b"})), "enable", "b", Standing()),
        (Standing(), "enable", "b", Standing()),
        (PAUSED, "reconnect", None, PAUSED),
        (PAUSED, "kill_client", None, PAUSED),
    ],
)
def test_what_a_verb_leaves_behind(before: Standing, verb: str, database: str | None, after: Standing) -> None:
    found = before.act(verb, database, CONFIG)
    assert not found.changes(after)
    assert (found.number > before.number) or not found.changes(before)


@pytest.mark.parametrize(
    ("before", "verb", "database", "message"),
    [
        (PAUSED, "pause", None, "already suspended/paused"),
        (PAUSED, "pause", "a", "already suspended/paused"),
        (SUSPENDED, "kill", None, "already suspended/paused"),
        (SUSPENDED, "suspend", None, "already suspended/paused"),
        (ONE_PAUSED, "suspend", None, "cannot suspend with paused databases"),
        (Standing(), "resume", None, "pooler is not paused/suspended"),
        (ONE_PAUSED, "resume", None, "pooler is not paused/suspended"),
        (ONE_PAUSED, "resume", "b", "database b is not paused"),
    ],
)
def test_what_cannot_be_now(before: Standing, verb: str, database: str | None, message: str) -> None:
    with pytest.raises(GatewayError) as caught:
        before.act(verb, database, CONFIG)
    assert (caught.value.message, caught.value.sqlstate, caught.value.severity) == (message, "55000", "ERROR")


@pytest.mark.parametrize("verb", ["pause", "resume", "kill", "disable", "enable", "reconnect", "wait_close"])
def test_a_database_that_is_none(verb: str) -> None:
    with pytest.raises(NoSuchDatabase) as caught:
        Standing().act(verb, "none", CONFIG)
    assert caught.value.severity == "ERROR"


@pytest.mark.parametrize("verb", [verb for verb in INVERSE if verb != "enable"])
def test_what_is_taken_back_leaves_nothing(verb: str) -> None:
    database = "a" if verb == "disable" else None
    there = Standing().act(verb, database, CONFIG)
    assert not there.act(INVERSE[verb], database, CONFIG).changes(Standing())


def test_set_and_reload() -> None:
    standing = Standing().set("a", "1").set("b", "2").set("a", "3")
    assert standing.settings == (("b", "2"), ("a", "3"))
    held = standing.act("pause", "a", CONFIG).act("disable", "b", CONFIG)
    without_a = Config(databases={"b": DatabaseConfig(name="b")})
    after = held.reloaded({"g.ini": "text"}, without_a)
    assert (after.settings, after.files) == ((), {"g.ini": "text"})
    assert not after.paused_databases and after.disabled_databases == {"b"}


def test_it_travels() -> None:
    standing = Standing(first={"g": "1"}, files={"g": "2"}, suspended=True).set("verbose", "1")
    standing = standing.act("disable", "a", CONFIG)
    assert Standing.from_body(json.loads(json.dumps(standing.as_body()))) == standing


def test_a_new_worker_has_what_the_others_have(tmp_path: Path) -> None:
    ini = tmp_path / "gateway.ini"

    def text(**settings: object) -> str:
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        return f"[databases]\nshop = host=127.0.0.1\n[pgtrunk]\nauth_type = trust\nlisten_addr = 127.0.0.1\n{lines}"

    path = str(ini)
    first = {path: text(listen_port=1111, default_pool_size=1, auth_file=tmp_path / "gone")}
    files = {path: text(listen_port=2222, default_pool_size=2, reserve_pool_size=2)}
    # What is on the disk by now has not been reloaded.
    ini.write_text("nonsense")
    config = Standing(first=first, files=files).set("reserve_pool_size", "3").loaded(path).config
    assert (config.listen_port, config.default_pool_size, config.reserve_pool_size) == (1111, 2, 3)


def test_a_file_that_nobody_has_read(tmp_path: Path) -> None:
    read = reader({"g.ini": "%include other.ini\n"})
    with pytest.raises(ConfigError, match=r"other.ini.*not among the files"):
        load("g.ini", read)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(str(tmp_path / "none"))
