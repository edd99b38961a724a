"""The documents hold: names exist, the table of keys is complete, drawings are those of the code.

That README's client example runs is tested in e2e/test_readme_example.py.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
from itertools import chain
from pathlib import Path

import asyncpg
import pytest

from helpers.documents import DOCUMENTS, README, ROOT, block, section, spans
from helpers.source_names import SOURCE_ROOTS, source_names
from helpers.state_diagram import redrawn
from pgtrunk_gateway import errors
from pgtrunk_gateway.config.keys import DATABASE as DATABASE_KEYS
from pgtrunk_gateway.config.keys import MAIN
from pgtrunk_gateway.config.keys import PEER as PEER_KEYS
from pgtrunk_gateway.config.keys import USER as USER_KEYS
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.session.parameters import TRACKED

ARCHITECTURE = DOCUMENTS["ARCHITECTURE.md"]

FOREIGN = ("asyncio", "asyncpg")
"""Packages of others whose names the documents use."""
NOT_OURS = {"executemany", "fetchval", "pgbouncer", "psql", "pgbench", "skipif", "python3", "hdrhistogram"}
KEYS = {*MAIN, *DATABASE_KEYS, *USER_KEYS, *PEER_KEYS, *TRACKED}
"""Of gateway.ini, and Postgres' own that a session keeps."""
ASYNCPG = {*inspect.signature(asyncpg.create_pool).parameters, *inspect.signature(asyncpg.connect).parameters}
ASYNCPG |= {*inspect.signature(asyncpg.Pool.acquire).parameters, "acquire"}
"""What its users write."""


# -- examples ----------------------------------------------------------------------------------------------------------


def test_the_gateway_ini_loads_without_a_remark(tmp_path: Path) -> None:
    text = block(README, "ini")
    for folder in ("/etc/pgtrunk", "/run/pgtrunk", "/var/log/pgtrunk"):
        (tmp_path / folder[1:]).mkdir(parents=True)
        text = text.replace(folder, str(tmp_path / folder[1:]))
    for name in ("server.pem", "server.key", "userlist.txt"):
        (tmp_path / "etc/pgtrunk" / name).touch(mode=0o600)
    ini = tmp_path / "gateway.ini"
    ini.touch(mode=0o600)
    ini.write_text(text)
    loaded = load(ini)
    assert loaded.remarks == ()
    assert loaded.config.quic_enabled
    assert set(loaded.config.databases) == {"shop", "stats"}


def test_examples_are_short() -> None:
    assert all(len(block(README, language).splitlines()) <= 26 for language in ("python", "ini"))


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_table_of_keys_is_complete() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (.*) \|$", section(README, "Which keys are acted on"), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", row)) for name, row in rows}
    assert told.pop("in `[databases]`") == {key.name for key in DATABASE_KEYS.values() if key.acted_on}
    assert told.pop("in `[users]`") == {key.name for key in USER_KEYS.values() if key.acted_on}
    assert told.pop("in `[peers]`") == {key.name for key in PEER_KEYS.values() if key.acted_on}
    assert set(chain(*told.values())) == {key.name for key in MAIN.values() if key.acted_on}


def test_each_sqlstate_is_that_of_an_error() -> None:
    told = set(re.findall(r"\b[0-9][0-9A-Z]{4}\b", section(README, "How errors look")))
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    assert told
    assert told <= {each.sqlstate for each in classes if issubclass(each, errors.GatewayError)}


# -- names -------------------------------------------------------------------------------------------------------------


def exists(span: str) -> bool:
    """Whether there is something of this name; True for what is no name."""
    if span.endswith((".py", "/")):
        return any(
            (root / span).exists() for root in (ROOT, *SOURCE_ROOTS, *(root / "pgtrunk" for root in SOURCE_ROOTS))
        )
    name = re.sub(r"\(.*\)$", "", span)
    if (
        not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name)
        or name.isupper()
        or name.endswith((".md", ".pem", ".ini"))
    ):
        return True
    first, _, rest = name.partition(".")
    if not rest:
        return is_known(name)
    if first in FOREIGN:
        return hasattr(importlib.import_module(first), rest)
    if first.startswith("pgtrunk"):
        return source_names().has_path(name) or hasattr(importlib.import_module(first), rest)
    return first not in source_names().members or source_names().has_member(first, rest)


def is_known(name: str) -> bool:
    """Whether a name without dots is one of ours, or of Python's."""
    names = source_names()
    if name.endswith("_"):
        return any(each.startswith(name) for each in names.functions)
    return (
        name in names.functions
        or name in names.members
        or any(name in each for each in chain(names.members.values(), names.modules.values()))
        or any(name in module.split(".") for module in names.modules)
        or name in KEYS
        or name in NOT_OURS
        or name in ASYNCPG
        or hasattr(builtins, name)
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_in_backticks_exist(document: str) -> None:
    assert [span for span in spans(DOCUMENTS[document]) if not exists(span)] == []


def test_a_name_that_is_gone_is_noticed() -> None:
    for gone in ("Session.vanish", "pgtrunk.quick", "pgtrunk.quic.gone", "Sessions", "relay/gone.py", "asyncpg.Pond"):
        assert not exists(gone), gone


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_make_target_exists(document: str) -> None:
    told = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", DOCUMENTS[document], re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert told <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_link_leads_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[document])
    headings = {anchor(each) for each in re.findall(r"^#+ (.*)$", DOCUMENTS[document], re.MULTILINE)}
    inner = {link[1:] for link in links if link.startswith("#")}
    outer = {link for link in links if not link.startswith(("#", "https://"))}
    assert inner <= headings
    assert [link for link in outer if not (ROOT / link).exists()] == []


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# -- drawings ----------------------------------------------------------------------------------------------------------


def test_the_drawing_of_states_is_that_of_the_table() -> None:
    assert redrawn(ARCHITECTURE) == ARCHITECTURE, "run: .venv/bin/python tests/helpers/state_diagram.py"


def test_calls_in_the_sequence_are_methods_of_whom_they_go_to() -> None:
    (diagram,) = re.findall(r"```mermaid\nsequenceDiagram\n(.*?)```", ARCHITECTURE, re.DOTALL)
    owners = dict(re.findall(r"participant (\w+) as (\w+)", diagram))
    calls = re.findall(r"->>(\w+): (\w+)\(", diagram)
    assert len(calls) > 15
    assert [
        (owners[to], name) for to, name in calls if to in owners and not source_names().has_member(owners[to], name)
    ] == []
