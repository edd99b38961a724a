"""The commands that name prepared statements are found wherever they stand, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.session.sql.commands import DEALLOCATE, EXECUTE, PREPARE, Naming, naming_commands
from pgtrunk_gateway.session.sql.lexer import commands_of
from pgtrunk_gateway.session.sql.text import glance, read

FOUND: dict[bytes, list[tuple[bytes, bytes, int]]] = {
    b"prepare x as select 1": [(PREPARE, b"x", 0)],
    b'PREPARE "X y" (int) AS select $1; EXECUTE "X y"(1); deallocate prepare "X y";': [
        (PREPARE, b"X y", 0),
        (EXECUTE, b"X y", 1),
        (DEALLOCATE, b"X y", 2),
    ],
    b'execute "a""b"': [(EXECUTE, b'a"b', 0)],
    b"select 1; select ';execute a'; execute B": [(EXECUTE, b"b", 2)],
    b";; execute a": [(EXECUTE, b"a", 0)],
    b"deallocate prepare": [(DEALLOCATE, b"prepare", 0)],
    b'deallocate "all"': [(DEALLOCATE, b"all", 0)],
    b"explain analyze verbose execute q(1)": [(EXECUTE, b"q", 0)],
    b"explain (analyze, costs off) execute q(1)": [(EXECUTE, b"q", 0)],
    b"create table t (a) as execute q with no data": [(EXECUTE, b"q", 0)],
    b"explain create table t as execute q": [(EXECUTE, b"q", 0)],
    b"/* c /* n */ */ -- x\n execute z": [(EXECUTE, b"z", 0)],
    b"create function f() returns int begin atomic select case when true then 1 end; select 2; end; execute q": [
        (EXECUTE, b"q", 1)
    ],
    b"create rule r as on insert to t do also (select 1; select 2); execute q": [(EXECUTE, b"q", 1)],
    b"do $$ begin execute 'x'; end $$; execute b": [(EXECUTE, b"b", 1)],
    b"select $a$ $$; execute b; $$ $a$; execute c": [(EXECUTE, b"c", 1)],
    b"select 'it''s; '; execute b": [(EXECUTE, b"b", 1)],
    rb"select E'\'; execute c'; execute b": [(EXECUTE, b"b", 1)],
    "execute größe".encode(): [(EXECUTE, "größe".encode(), 0)],
    b"execute " + b"n" * 80: [(EXECUTE, b"n" * 63, 0)],
}
NONE = [
    b"",
    b"select 1",
    b"select 'prepare x as select 1'",
    b"deallocate all; deallocate prepare all",
    b"prepare",
    b"execute 'x'",
    b'execute ""',
    b'execute U&"x"',
    b"execute a; select 'open",
    b"execute a; /* open",
    b"execute a; $x$ open $$",
    b"prepare transaction 'x'",
    b"create trigger t before insert on t execute function f()",
    b"grant execute on function f() to public",
    b"delete from prepare",
]


def named(text: bytes, *, escapes: bool = False) -> tuple[Naming, ...]:
    return naming_commands(commands_of(text, escapes=escapes))


@pytest.mark.parametrize("text", FOUND)
def test_what_is_found(text: bytes) -> None:
    found = named(text)
    assert [(command.kind, command.name, command.number) for command in found] == FOUND[text]
    for command in found:
        assert command.name[:1].lower() in text[command.at : command.upto].lower()
        assert command.upto <= command.ends <= len(text)
    assert glance(text, 0, len(text))


@pytest.mark.parametrize("text", NONE)
def test_what_is_not(text: bytes) -> None:
    assert named(text) == ()


def test_a_backslash_may_be_special_everywhere() -> None:
    text = rb"select 'a\'; execute b'; execute c"
    assert named(text) == ()
    assert [command.name for command in named(text, escapes=True)] == [b"c"]


@pytest.mark.parametrize("text", [b"select * from t where x = 'y'", b"insert into t values (1)", b"delete from t;"])
def test_ordinary_texts_are_not_looked_at(text: bytes) -> None:
    assert not glance(b"Q\0\0\0\0" + text + b"\0", 5, 5 + len(text))


@given(st.binary(max_size=80))
def test_anything_is_read(text: bytes) -> None:
    for escapes in (False, True):
        for words in commands_of(text, escapes=escapes):
            assert all(0 <= word.start < word.end <= len(text) for word in words)
        named(text, escapes=escapes)


@given(
    st.lists(st.sampled_from([b"execute a", b"select 1", b"'x;'", b"/*;*/", b"$$;$$", b'"q;"', b";", b" "]), max_size=8)
)
def test_a_glance_misses_nothing(parts: list[bytes]) -> None:
    text = b" ".join(parts)
    if named(text):
        assert glance(text + b"\0", 0, len(text))


@pytest.mark.parametrize("size", [3 << 10, 60 << 10, 300 << 10])
def test_texts_of_any_length_are_read_that_may_have_one(size: int) -> None:
    text = b"prepare big as select '" + b"x" * size + b"'"
    (found,) = read(text, escapes=False).naming
    assert (found.kind, found.name, found.ends) == (PREPARE, b"big", len(text))
