"""The gateway's errors: each is an ErrorResponse in waiting."""

from __future__ import annotations

import re

import pytest

from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway import errors
from pgtrunk_gateway.errors import AuthenticationFailed, ConfigError, GatewayError, QueryCanceled

CLASSES = [
    value
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and issubclass(value, GatewayError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_has_a_sqlstate_a_severity_and_words(kind: type[GatewayError]) -> None:
    error = kind()
    assert isinstance(error, PgtrunkError)
    assert re.fullmatch("[0-9A-Z]{5}", error.sqlstate) and error.severity in ("ERROR", "FATAL")
    assert str(error) == error.message == kind.default and error.message


def test_an_instance_may_say_more_and_other_than_its_class() -> None:
    error = QueryCanceled("query timeout", detail="d", hint="h", severity="FATAL", sqlstate="57000", log="l")
    assert (error.message, error.detail, error.hint, error.log) == ("query timeout", "d", "h", "l")
    assert (error.severity, error.sqlstate) == ("FATAL", "57000")
    assert (QueryCanceled.severity, QueryCanceled.sqlstate) == ("ERROR", "57014")


def test_the_log_line_is_no_part_of_the_message() -> None:
    assert "no such user" not in str(AuthenticationFailed(log="no such user: 'x'"))


@pytest.mark.parametrize(
    ("path", "line", "shown"),
    [("/a/b.ini", 3, "/a/b.ini:3: wrong"), ("/a/b.ini", None, "/a/b.ini: wrong"), (None, None, "wrong")],
)
def test_errors_of_files_begin_with_the_place(path: str | None, line: int | None, shown: str) -> None:
    error = ConfigError("wrong", path=path, line=line)
    assert str(error) == shown and error.message == "wrong"
