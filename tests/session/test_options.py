"""The ``options`` of a startup packet, split as Postgres splits them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.errors import NotSupported
from pgtrunk_gateway.session.options import parse_options


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", []),
        ("  \t ", []),
        ("-c a=1", [("a", "1")]),
        ("-ca=1", [("a", "1")]),
        ("--a=1", [("a", "1")]),
        ("  -c    a=1  \n--b=2\v-cc=3 ", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("-c a=1 -c a=2", [("a", "1"), ("a", "2")]),
        ("-c datestyle=German,\\ YMD", [("datestyle", "German, YMD")]),
        ("-c dat\\estyle\\=\\Ge\\rman,\\ YMD", [("datestyle", "German, YMD")]),
        ("-c a=\\\\", [("a", "\\")]),
        ("-c a=b\\", [("a", "b")]),
        ("-c a=", [("a", "")]),
        ("-c a==b=c", [("a", "=b=c")]),
        ("--statement-timeout=5s -c work-mem=1-2", [("statement_timeout", "5s"), ("work_mem", "1-2")]),
        ("-c app.user=größe", [("app.user", "größe")]),
        # A space that is none to the server.
        ("-c a=1\u00a0-c", [("a", "1\u00a0-c")]),
    ],
)
def test_what_is_set(text: str, settings: list[tuple[str, str]]) -> None:
    assert parse_options(text) == settings


@pytest.mark.parametrize("text", ["-d", "-d 5", "-c", "-c a", "--a", "a=1", "-c =1", "--=1", "-c a=1 -B 5", "-", "--"])
def test_what_is_not_to_be_had(text: str) -> None:
    with pytest.raises(NotSupported, match="only '-c config=val' and '--config=val' are allowed") as caught:
        parse_options(text)
    assert str(caught.value.severity) == "FATAL"


@given(st.lists(st.tuples(st.from_regex("[a-z_]+", fullmatch=True), st.text(max_size=10))))
def test_what_is_escaped_comes_out_as_it_was(settings: list[tuple[str, str]]) -> None:
    text = " ".join("-c " + "".join(f"\\{character}" for character in f"{name}={value}") for name, value in settings)
    assert parse_options(text) == settings


@given(st.text(alphabet=" \t-c=\\ab'\0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(NotSupported):
        parse_options(text)
