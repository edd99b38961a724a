"""Whatever a file holds, loading it ends: with settings, or with an `InvalidConfig` whose errors all have a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrunk_gateway.config.build import build
from pgtrunk_gateway.config.connstr import parse_connstr
from pgtrunk_gateway.config.ini import MAX_FAULTS, MAX_FILES, parse
from pgtrunk_gateway.config.keys import MAIN, SECTIONS
from pgtrunk_gateway.config.reading import read_values
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("main.ini", "a.ini", "b.ini")
SNIPPETS = (
    *(f"[{name}]" for name in SECTIONS),
    *(f"%include {name}" for name in FILES),
    *(f"{name} = " for name in MAIN),
    "'",
    '"',
    "=",
    ";",
    "\n",
    "\r\n",
    " ",
    "\t",
    "0",
    "-1",
    "1e9",
    "* = host=a",
    "x = port=1 user='a''b'",
    "1 = host=x",
)
texts = st.one_of(
    st.text(max_size=200),
    st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=5)), max_size=40).map("".join),
    st.lists(st.sampled_from(SNIPPETS), max_size=40).map("\n".join),
)


def interpret(files: Mapping[str, str]) -> None:
    def read(path: str) -> str:
        if path not in files:
            raise ConfigError("cannot be read: no such file")
        return files[path]

    document = parse("main.ini", read)
    assert len(document.faults) <= MAX_FAULTS
    assert len(document.paths) <= MAX_FILES
    reading = read_values(document)
    for fault in reading.faults:
        assert fault.path is not None
        assert fault.line is not None
        assert "\n" not in fault.message
    for remark in reading.remarks:
        assert "\n" not in str(remark)
    build(reading)


@given(st.tuples(texts, texts, texts))
@settings(max_examples=500, deadline=None)
def test_any_text(contents: tuple[str, str, str]) -> None:
    interpret(dict(zip(FILES, contents, strict=True)))


@given(st.sampled_from(sorted(MAIN)), st.one_of(st.text(max_size=30), st.from_regex(r"[-+]?[0-9.eExXkMGB ]{1,30}")))
@settings(max_examples=500, deadline=None)
def test_any_value(key: str, value: str) -> None:
    interpret({"main.ini": f"[pgtrunk]\n{key} = {value}\n"})


@given(st.text(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_connection_string(text: str) -> None:
    try:
        pairs = parse_connstr(text)
    except ConfigError as error:
        assert error.message
    else:
        assert all(key and value for key, value in pairs)


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z_]{1,10}", fullmatch=True), st.text(min_size=1, max_size=20)), max_size=8)
)
@settings(max_examples=300, deadline=None)
def test_quoted_values_come_back(pairs: list[tuple[str, str]]) -> None:
    text = " ".join(f"{key}='{value.replace(chr(39), chr(39) * 2)}'" for key, value in pairs)
    assert parse_connstr(text) == pairs
