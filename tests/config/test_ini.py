"""The grammar of the ini file, case by case."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.config.ini import MAX_DEPTH, MAX_FAULTS, MAX_FILES, Document, parse
from pgtrunk_gateway.errors import ConfigError


def read(text: str, **files: str) -> Document:
    """The document of `main.ini` with this text; other files by name without .ini."""
    texts = {"main.ini": text, **{f"{name}.ini": content for name, content in files.items()}}

    def reader(path: str) -> str:
        try:
            return texts[path]
        except KeyError:
            raise ConfigError("cannot be read: no such file") from None

    return parse("main.ini", reader)


def items(document: Document) -> list[tuple[str, str, str]]:
    assert not document.faults
    return [(item.section, item.key, item.value) for item in document.items]


def faults(document: Document) -> list[str]:
    return [str(fault) for fault in document.faults]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a = b", "a", "b"),
        ("\t a \t=\t b \t", "a", "b"),
        ("a = b\r", "a", "b"),
        ("a =", "a", ""),
        ("a = b ; no comment", "a", "b ; no comment"),
        ("a = b # no comment", "a", "b # no comment"),
        ("a = 'b'", "a", "'b'"),
        ("a = b = c", "a", "b = c"),
        ("a = [b]", "a", "[b]"),
        ("* = host=x", "*", "host=x"),
        ("A_b.c-9* = x", "A_b.c-9*", "x"),
        ("'my db' = x", "my db", "x"),
        ("'*' = x", "*", "x"),
        ("'a\"b' = x", 'a"b', "x"),
        ("'ä' = ö", "ä", "ö"),
        ('"my db" = x', "my db", "x"),
        ('"a""b" = x', 'a"b', "x"),
        ('"a\'b" = x', "a'b", "x"),
        ("'; no comment' = x", "; no comment", "x"),
        ("a = \u00a0b\u2028", "a", "\u00a0b\u2028"),
    ],
)
def test_entry(line: str, key: str, value: str) -> None:
    assert items(read(f"[s]\n{line}\n")) == [("s", key, value)]


@pytest.mark.parametrize("line", ["", "   ", "; a = b", "# a = b", "  \t; a = b", "\v\f\r"])
def test_lines_that_say_nothing(line: str) -> None:
    assert items(read(f"[s]\n{line}\n")) == []


def test_what_follows_a_section_on_its_line_counts() -> None:
    assert items(read("[s] a = b\n[t][u] ; comment\nc = d")) == [("s", "a", "b"), ("u", "c", "d")]


def test_section_names_are_not_trimmed() -> None:
    assert [header.name for header in read("[ s ]\n[]\n").headers] == [" s ", ""]


def test_duplicates_are_kept_in_order() -> None:
    assert items(read("[s]\na = 1\na = 2\n")) == [("s", "a", "1"), ("s", "a", "2")]


def test_sources_are_lines_of_their_own_file() -> None:
    document = read("[s]\n\na = 1\n%include other.ini\nb = 2\n", other="; first line\nc = 3\n")
    assert [str(item.source) for item in document.items] == ["main.ini:3", "other.ini:2", "main.ini:5"]
    assert document.paths == ("main.ini", "other.ini")


def test_a_section_goes_on_in_an_included_file_and_behind_it() -> None:
    document = read("[s]\n%include other.ini  \nb = 2\n", other="a = 1\n[t]\n")
    assert items(document) == [("s", "a", "1"), ("t", "b", "2")]


def test_a_file_may_be_included_twice() -> None:
    assert len(items(read("[s]\n%include a.ini\n%include a.ini\n", a="x = 1"))) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a", 'expected key = value, found no = after "a"'),
        ("pool mode", 'expected key = value, found no = after "pool"'),
        ("= b", "expected key = value, found nothing before the ="),
        ("my db = x", 'expected key = value; the key "my db" has characters that need single quotes'),
        ("ä = x", 'expected key = value; the key "ä" has characters that need single quotes'),
        ("'a = b", "a name that begins with ' needs the same quote at its end, something between them, then ="),
        ("'' = b", "a name that begins with ' needs the same quote at its end, something between them, then ="),
        ('"a" b', 'a name that begins with " needs the same quote at its end, something between them, then ='),
        ("[s", "a section's name ends with ] on the same line"),
        ("%include", "%include needs a blank and the name of a file"),
        ("%included = x", "%include needs a blank and the name of a file"),
        ("%include none.ini", '%include of "none.ini": cannot be read: no such file'),
        ("%include ./main.ini", '%include of "./main.ini": would never end, that file is being read already'),
    ],
)
def test_errors(line: str, message: str) -> None:
    document = read(f"[s]\nbefore = 1\n{line}\nafter = 1\n")
    assert faults(document) == [f"main.ini:3: {message}"]
    assert [item.key for item in document.items] == ["before", "after"]


def test_a_value_before_the_first_section() -> None:
    assert faults(read("a = 1\n[s]\n")) == ['main.ini:1: "a" stands before the first [section]']


def test_the_file_itself_cannot_be_read() -> None:
    def reader(path: str) -> str:
        raise ConfigError("cannot be read: no such file")

    assert faults(parse("main.ini", reader)) == ["main.ini: cannot be read: no such file"]


def test_nothing_behind_the_equals_sign_is_shown() -> None:
    assert "secret" not in "".join(faults(read("[s]\nmy db = password=secret\n'x = secret\n== secret\n")))


def test_includes_are_bounded_in_depth() -> None:
    chain = {f"f{level}": f"%include f{level + 1}.ini\n" for level in range(MAX_DEPTH + 2)}
    document = read("[s]\n%include f1.ini\n", **chain)
    assert faults(document) == ['f10.ini:1: %include of "f11.ini": nested too deep, at most 10 levels are allowed']
    assert len(document.paths) == MAX_DEPTH + 1


def test_includes_are_bounded_in_number() -> None:
    fan = {f"f{level}": f"%include f{level + 1}.ini\n" * 20 for level in range(1, MAX_DEPTH)}
    document = read("[s]\n%include f1.ini\n", **fan, f10="")
    assert len(document.paths) == MAX_FILES
    assert faults(document)[0].endswith(f"one too many, at most {MAX_FILES} files are read")


def test_errors_are_bounded() -> None:
    assert len(read("x\n" * 10 * MAX_FAULTS).faults) == MAX_FAULTS


def test_long_lines_take_no_longer_than_their_length() -> None:
    assert len(read("[s] " * 250_000).headers) == 250_000
    assert len(read('"' * 500_001).faults) == 1
    assert len(read("'" + "x" * 500_000).faults) == 1
