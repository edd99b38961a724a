"""What `retry_safe` makes of exceptions, those of drivers among them."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy.exc

from pgtrunk import GatewayUnreachable, SessionLost, UsageError, retry_safe
from pgtrunk.wire.hints import NOT_SENT, SENT, UNDONE

UNSENT = SessionLost("gone", sent=False)
LOST = SessionLost("gone")
MIDDLE = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
CLOSED = asyncpg.InterfaceError("cannot perform operation: connection is closed")


def caused(error: BaseException, cause: BaseException | None) -> BaseException:
    error = type(error)(*error.args)
    error.__cause__ = cause
    return error


def meanwhile(error: BaseException, other: BaseException) -> BaseException:
    error = type(error)(*error.args)
    error.__context__ = other
    return error


def told(sqlstate: str, severity: str = "FATAL", hint: str = "") -> Any:
    """An error of a server, as asyncpg raises it."""
    fields = {"S": "ERREUR", "V": severity, "C": sqlstate, "M": "words"}
    return asyncpg.PostgresError.new(fields | ({"H": hint} if hint else {}))


@pytest.mark.parametrize(
    "error",
    [
        GatewayUnreachable("away"),
        UNSENT,
        caused(MIDDLE, UNSENT),
        caused(RuntimeError("the application's"), caused(MIDDLE, UNSENT)),
        CLOSED,
        asyncpg.InterfaceError("pool is closing"),
        meanwhile(CLOSED, caused(MIDDLE, UNSENT)),
        meanwhile(CLOSED, KeyError("something else")),
        told("08006", hint=NOT_SENT),
        told("57P01", hint=UNDONE),
        caused(MIDDLE, told("08006", hint=NOT_SENT)),
        told("53300"),
        told("28P01"),
        told("57P03"),
        told("08001"),
        told("25P03"),
        told("40001", "ERROR"),
        psycopg.OperationalError("the connection is closed"),
        ExceptionGroup("two", [UNSENT, CLOSED]),
    ],
)
def test_safe(error: BaseException) -> None:
    assert retry_safe(error)


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        UsageError("a mistake"),
        MIDDLE,
        caused(MIDDLE, LOST),
        caused(MIDDLE, told("57P01")),
        caused(MIDDLE, told("08006", hint=SENT)),
        meanwhile(CLOSED, caused(MIDDLE, LOST)),
        meanwhile(CLOSED, meanwhile(KeyError("in between"), caused(MIDDLE, LOST))),
        meanwhile(CLOSED, MIDDLE),
        # A second attempt, made while the first one's error was handled.
        meanwhile(MIDDLE, UNSENT),
        told("57P01"),
        told("57P02"),
        told("08006"),
        told("57014", "ERROR"),
        told("23505", "ERROR"),
        # A function may raise what it likes.
        told("53300", "ERROR"),
        told("08006", "ERROR", NOT_SENT),
        psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly"),
        TimeoutError(),
        ConnectionResetError(),
        ValueError("connection is closed"),
        ExceptionGroup("two", [UNSENT, LOST]),
    ],
)
def test_unsafe(error: BaseException) -> None:
    assert not retry_safe(error)


def test_a_context_that_was_suppressed_does_not_count() -> None:
    error = meanwhile(CLOSED, LOST)
    error.__suppress_context__ = True
    assert retry_safe(error)


def test_circles_of_causes_end() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert not retry_safe(first)


def test_what_sqlalchemy_makes_of_a_drivers_error() -> None:
    for error, is_safe in ((caused(MIDDLE, UNSENT), True), (caused(MIDDLE, LOST), False)):
        wrapped = sqlalchemy.exc.DBAPIError("insert", {}, error)
        wrapped.__cause__ = error
        assert retry_safe(wrapped) is is_safe


def test_connecting_with_psycopg_fails_safely() -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(host="/nowhere/at/all", dbname="shop")
    assert retry_safe(caught.value)
