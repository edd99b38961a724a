"""Whatever a session has done to itself, it can be asked what it has left."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from helpers.debian_postgres import debian
from helpers.inquiring import Connected, ask, connect, exchange, run, server, sets
from pgtrunk_gateway.session.inquiry import KNOWN, inquire
from pgtrunk_gateway.session.sql.traces import Pin, Traces

if TYPE_CHECKING:
    from pgtrunk_gateway.session.inquiry import Answer

__all__ = ["connect", "debian", "server"]

_numbers = itertools.count(1)
EVERYTHING: Final = Traces(frozenset({"statement_timeout", "app.x"}), pins=KNOWN)


@pytest.mark.parametrize(
    "circumstances",
    [
        ["set default_transaction_isolation = serializable", "set default_transaction_read_only = on"],
        ["set standard_conforming_strings = off", "set client_encoding = latin1"],
        ["set session characteristics as transaction isolation level repeatable read, read only"],
        ["set search_path = ''"],
        ["set enable_hashjoin = off", "set enable_nestloop = off", "set enable_indexscan = off", "set jit = on"],
        ["set lock_timeout = 1", "set datestyle = german", "set quote_all_identifiers = on"],
    ],
    ids=lambda texts: texts[0],
)
def test_whatever_the_session_has_set(connect: Callable[[], Connected], circumstances: list[str]) -> None:
    connection = connect()
    run(connection, "set app.x = '1'; listen news", *circumstances)
    answer = ask(connection, EVERYTHING)
    assert answer is not None
    assert (answer.settings, answer.pins) == ({"app.x": "1"}, Pin.LISTEN)


def test_operators_that_the_session_has_made(connect: Callable[[], Connected]) -> None:
    connection, schema = connect(), f"evil_{next(_numbers)}"
    run(connection, f"create schema {schema}")
    try:
        for types in ("text, text", "oid, oid", "name, text", "int4, int4"):
            run(
                connection,
                f"create function {schema}.no({types}) returns bool language sql as 'select false'",
                f"create operator {schema}.= (function = {schema}.no, leftarg = {types.split(',')[0]},"
                f" rightarg = {types.split(',')[1]})",
            )
        run(connection, f"set search_path = {schema}, pg_catalog; set app.x = '1'; create temp table mine (a int)")
        answer = ask(connection, EVERYTHING)
        assert answer is not None
        assert (answer.settings, answer.pins) == ({"app.x": "1"}, Pin.TEMPORARY)
    finally:
        run(connection, f"reset search_path; drop schema {schema} cascade")


def test_a_role_that_may_do_nothing(connect: Callable[[], Connected]) -> None:
    connection, role = connect(), f"inquired_{next(_numbers)}"
    run(connection, f"create role {role}", "listen news; set app.x = '1'", f"set session authorization {role}")
    try:
        answer = ask(connection, EVERYTHING | sets("session_authorization"))
        assert answer is not None
        assert answer.settings == {"app.x": "1", "session_authorization": role}
        assert answer.pins == Pin.LISTEN
    finally:
        run(connection, "reset session authorization", f"drop role {role}")


def test_what_a_role_may_not_see_fails_and_that_is_all(connect: Callable[[], Connected]) -> None:
    connection, role = connect(), f"inquired_{next(_numbers)}"
    run(connection, f"create role {role}", "set dynamic_library_path = 'x'", f"set role {role}")
    try:
        assert ask(connection, sets("dynamic_library_path"), fails=True) is None
        assert ask(connection, sets("role")) is not None
    finally:
        run(connection, "reset role", f"drop role {role}")


def test_a_statement_timeout_that_is_too_short(connect: Callable[[], Connected]) -> None:
    connection = connect()
    run(connection, "listen news; set statement_timeout = '1ms'")
    for _ in range(5):
        answer = ask_as_often_as_it_takes(connection)
        assert answer.settings == {"statement_timeout": "1ms"}
        assert answer.pins == Pin.LISTEN
    # It is as it was.
    told = itertools.chain.from_iterable(run(connection, "show statement_timeout") for _ in range(50))
    assert "DataRow 1ms" in told


def ask_as_often_as_it_takes(connection: Connected) -> Answer:
    """Even the first of its commands may come too late."""
    for attempt in range(100):
        inquiry = inquire(EVERYTHING, {}, connection.parameters, pins=Pin.NONE, login=connection.user)
        assert inquiry is not None
        answer = exchange(connection, inquiry, patient=attempt > 0).answer
        if answer is not None:
            return answer
    raise AssertionError("it is never answered")
