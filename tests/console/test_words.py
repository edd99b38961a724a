"""Statements and words: what PgBouncer takes, what SQL has beside it, and what is neither."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.console.words import Mark, statements
from pgtrunk_gateway.errors import InvalidCommand


def words(sql: str) -> list[list[str]]:
    return [[word.text for word in statement.words] for statement in statements(sql)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("show pools", [["show", "pools"]]),
        ("  SHOW\n\tPools ;  ", [["SHOW", "Pools"]]),
        ('PAUSE "my ""db"""', [["PAUSE", 'my "db"']]),
        ("SET a = 'it''s'", [["SET", "a", "=", "it's"]]),
        ("set a=b", [["set", "a", "=", "b"]]),
        ("SET a TO 0.5", [["SET", "a", "TO", "0.5"]]),
        ("SET a = -1", [["SET", "a", "=", "-1"]]),
        ("kill my-db.x", [["kill", "my-db.x"]]),
        ("PAUSE größe", [["PAUSE", "größe"]]),
        ("a;b ; c", [["a"], ["b"], ["c"]]),
        ("a -- b;\n; /* c; */ d /**/", [["a"], ["d"]]),
        ("a--b", [["a"]]),
        ("", []),
        (" ;; -- nothing", []),
        ("SET a = ''", [["SET", "a", "=", ""]]),
    ],
)
def test_words(sql: str, expected: list[list[str]]) -> None:
    assert words(sql) == expected


def test_each_word_knows_how_it_was_written() -> None:
    (statement,) = statements("""SET "a" = 'b' """)
    assert [word.mark for word in statement.words] == [Mark.PLAIN, Mark.QUOTED, Mark.SYMBOL, Mark.STRING]


@pytest.mark.parametrize("sql", ["SELECT 'a", 'PAUSE "x', "select (1)", "SELECT $1 + 2", "/* never ends", "a,b", "\0"])
def test_what_is_no_word(sql: str) -> None:
    with pytest.raises(InvalidCommand) as caught:
        words(sql)
    assert caught.value.message == f"invalid command '{sql.strip()}', use SHOW HELP;"
    assert caught.value.sqlstate == "42601"


def test_an_error_repeats_the_statement_that_is_wrong_and_not_all_of_it() -> None:
    with pytest.raises(InvalidCommand, match=r"'b [(]c', use"):
        words("a; b (c")
    with pytest.raises(InvalidCommand) as caught:
        words("(" * 1000)
    assert len(caught.value.message) < 150
