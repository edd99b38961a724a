"""auth_file: PgBouncer's grammar where it reads a line, an error with file and line where it would guess or give up."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.auth import MD5, Plain, ScramSecret, Userlist
from pgtrunk_gateway.auth.userlist import MAX_SECRET, MAX_USER
from pgtrunk_gateway.errors import ConfigError


def parse(text: str | bytes) -> Userlist:
    return Userlist.parse(text.encode() if isinstance(text, str) else text, "/etc/userlist.txt")


def test_a_file_as_pgbouncer_has_it() -> None:
    users = parse(
        '"marko" "kama"\n'
        ";Commented out line should be ignored.\n"
        '  ; "ghost" "boo"\n'
        "\n \t\r\n"
        '"muser1" "md5ab8b744ff66bee42dc47bae34ca17959"\n'
        '\t "scramuser1" "SCRAM-SHA-256$4096:D76gvGUVj9Z4DNiGoabOBg==$'
        'RukL0Xo3Ql/2F9FsD7mcQ3GATG2fD3PA71qY1JagGDs=:BhKUwyyivFm7Tq2jDJVXSVRbRDgTWyBilZKgg6DDuYU="\r\n'
        '"maxedout" ""'
    )
    assert users.get("marko") == Plain("kama")
    assert users.get("muser1") == MD5("md5ab8b744ff66bee42dc47bae34ca17959")
    assert isinstance(users.get("scramuser1"), ScramSecret)
    assert users.get("maxedout") == Plain("")
    assert users.get("ghost") is None and "ghost" not in users
    assert repr(users) == "<Userlist of 4>"


@pytest.mark.parametrize(
    ("line", "user", "password"),
    [
        ('"a""b" "c"', 'a"b', "c"),
        ('"a" "b""c"', "a", 'b"c'),
        ('"a" """"', "a", '"'),
        ('"a" """b"', "a", '"b'),
        ('"""" "b"', '"', "b"),
        ('"a""" "b"', 'a"', "b"),
        ('"a""b"  "c""d"', 'a"b', 'c"d'),
        ('"a" "b" ignored "rest" ;', "a", "b"),
        ('"a" "b"ignored', "a", "b"),
        ('"a" = "b"', "a", "b"),
        ('"a b;c" "d;e"', "a b;c", "d;e"),
        ('"müller" "größe"', "müller", "größe"),
        ('"" "b"', "", "b"),
    ],
)
def test_quotes(line: str, user: str, password: str) -> None:
    assert parse(line).get(user) == Plain(password)


def test_of_two_entries_the_later_counts() -> None:
    assert parse('"a" "old"\n"a" "new"').get("a") == Plain("new")


@pytest.mark.parametrize(
    ("line", "secrets"),
    [
        ('"a" "new" previous "old"', ("new", "old")),
        ('"a" "new"\tprevious"old"\r', ("new", "old")),
        ('"a" "new" previous "o""ld" ; and the rest', ("new", 'o"ld')),
        ('"a" "new"previous "old"', ("new",)),
        ('"a" "new" previously "old"', ("new",)),
        ('"a" "new" "old"', ("new",)),
        ('"a" "old"\n"a" "new"', ("new",)),
        ('"a" "new" previous "old"\n"a" "newer"', ("newer",)),
        ('"a" "old"\n"a" "new" previous "old"', ("new", "old")),
    ],
)
def test_a_previous_secret(line: str, secrets: tuple[str, ...]) -> None:
    users = parse(line)
    assert users.secrets("a") == tuple(map(Plain, secrets))
    assert users.get("a") == Plain(secrets[0])
    assert len(users) == 1 and users.secrets("b") is None


def test_octets_that_are_no_utf_8_survive() -> None:
    secret = parse(b'"a" "caf\xe9"').get("a")
    assert isinstance(secret, Plain) and secret.password.encode("utf-8", "surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("a b", "expected an entry"),
        ("# no comment", "expected an entry"),
        ('x"a" "b"', "expected an entry"),
        ('"a', "quotes of the user name"),
        ('"a""', "quotes of the user name"),
        ('"a"', 'expected "secret"'),
        ('"a" b', 'expected "secret"'),
        ('"a" "b', 'expected "secret"'),
        # One field with a quote in it, not two.
        ('"a""b"', 'expected "secret"'),
        ('"a" "b\0c"', "zero octet"),
        ('"a\0" "b"', "zero octet"),
        ('"' + "u" * (MAX_USER + 1) + '" "b"', "user name of 128 octets"),
        ('"a" "' + "p" * (MAX_SECRET + 1) + '"', "secret of 65531 octets"),
        ('"a" "SCRAM-SHA-256$4096:x"', "malformed SCRAM secret"),
        ('"a" "b" previous', "behind the word previous"),
        ('"a" "b" previous c', "behind the word previous"),
        ('"a" "b" previous "c', "behind the word previous"),
        ('"a" "b" previous "c\0"', "zero octet"),
        ('"a" "b" previous "' + "p" * (MAX_SECRET + 1) + '"', "secret of 65531 octets"),
        ('"a" "b" previous "SCRAM-SHA-256$4096:x"', "malformed SCRAM secret"),
    ],
)
def test_a_line_that_is_no_entry_is_named(line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"^/etc/userlist\.txt:3: .*{re.escape(complaint)}") as caught:
        parse(f'; first\n"good" "line"\n{line}\n"more" "lines"')
    assert (caught.value.path, caught.value.line) == ("/etc/userlist.txt", 3)


def test_a_missing_quote_does_not_pair_a_user_with_the_next_ones_name() -> None:
    for text in ('"a" "secret\n"b" "c"', '"a"\n"b" "c"'):
        with pytest.raises(ConfigError, match=":1: "):
            parse(text)


def test_a_complaint_does_not_show_the_secret() -> None:
    for line in ('"a" "hunter2', 'hunter2 "a"', '"a" "SCRAM-SHA-256$hunter2"', '"hunter2', '"a" "b" previous hunter2'):
        with pytest.raises(ConfigError) as caught:
            parse(line)
        assert "hunter2" not in str(caught.value)


def test_the_longest_names_and_secrets() -> None:
    user, secret = "u" * MAX_USER, "p" * MAX_SECRET
    assert parse(f'"{user}" "{secret}"').get(user) == Plain(secret)


fields = st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(fields, fields.filter(lambda text: not text.startswith(("md5", "SCRAM")))))
def test_what_is_quoted_is_read_back(users: dict[str, str]) -> None:
    lines = ['"{}" "{}"'.format(*(field.replace('"', '""') for field in pair)) for pair in users.items()]
    read = parse("\n".join(lines))
    assert len(read) == len(users)
    assert all(read.get(user) == Plain(password) for user, password in users.items())


@given(st.one_of(st.binary(), st.text('";\n\0 ab').map(str.encode)))
def test_no_file_is_too_odd(data: bytes) -> None:
    try:
        parse(data)
    except ConfigError as error:
        assert error.line is not None
