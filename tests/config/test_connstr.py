"""Connection strings, case by case."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.config.connstr import parse_connstr
from pgtrunk_gateway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", []),
        ("   ", []),
        ("host=a", [("host", "a")]),
        ("host=a port=5432", [("host", "a"), ("port", "5432")]),
        ("  host  =  a   port = 5432  ", [("host", "a"), ("port", "5432")]),
        ("host=a host=b", [("host", "a"), ("host", "b")]),
        ("host=a,b,::1", [("host", "a,b,::1")]),
        ("password='a b'", [("password", "a b")]),
        ("password='it''s' user=x", [("password", "it's"), ("user", "x")]),
        ("password=''''", [("password", "'")]),
        ("password=a'b", [("password", "a'b")]),
        ("password=a=b", [("password", "a=b")]),
        (r"password=a\'b", [("password", r"a\'b")]),
        ("password='a\tb'", [("password", "a\tb")]),
        ("connect_query='set x = ''y''; select 1'", [("connect_query", "set x = 'y'; select 1")]),
    ],
)
def test_pairs(text: str, pairs: list[tuple[str, str]]) -> None:
    assert parse_connstr(text) == pairs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=a", "expected key=value, found nothing before the ="),
        ("host", "expected key=value, found a word without =; a value with spaces needs single quotes"),
        ("host=a b", "expected key=value, found a word without =; a value with spaces needs single quotes"),
        ("host=", 'the value of "host" is empty'),
        ("host= ", 'the value of "host" is empty'),
        ("host=''", 'the value of "host" is empty'),
        ("password='a", 'the value of "password" lacks its closing quote; a quote inside is doubled'),
        ("password='a''", 'the value of "password" lacks its closing quote; a quote inside is doubled'),
        ("password='a'b", 'the value of "password" goes on after its closing quote; a quote inside is doubled'),
        ("host=a\tport=1", 'the value of "host" has a tab in it: pairs are separated by spaces only'),
        ("host=a \tport=1", '"\\x09port" has a tab in it: pairs are separated by spaces only'),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_connstr(text)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text", ["password='secret", "password='a'secret", "password=a secret", "password='a\t secret"]
)
def test_values_are_never_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_connstr(text)
    assert "secret" not in str(caught.value)


def test_long_ones_take_no_longer_than_their_length() -> None:
    assert len(parse_connstr("a=b " * 250_000)) == 250_000
    assert parse_connstr("password='" + "''" * 500_000 + "'") == [("password", "'" * 500_000)]
    with pytest.raises(ConfigError):
        parse_connstr("password='" + "''" * 500_000)
