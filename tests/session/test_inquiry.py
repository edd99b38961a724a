"""What a session has left is told by PostgreSQL itself, and read right: by the newest, an older one, and the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from helpers.debian_postgres import debian
from helpers.inquiring import Connected, Connection, answer_to, ask, connect, connection, run, server, sets
from pgtrunk_gateway.session.inquiry import KNOWN, Inquiry, inquire
from pgtrunk_gateway.session.sql.traces import NOTHING, Pin, Traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["connect", "connection", "debian", "server"]

REPORTED: Final = {"TimeZone", "client_encoding", "search_path"}
_numbers = itertools.count(1)


# -- what is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("touched", "own", "pins", "names", "asked"),
    [
        (sets("lock_timeout"), {}, Pin.NONE, ("lock_timeout",), Pin.NONE),
        # What the session has already is asked along, so that the answer is all of it.
        (sets("work_mem"), {"app.x": "1"}, Pin.NONE, ("app.x", "work_mem"), Pin.NONE),
        (Traces(resets=True), {"app.x": "1"}, Pin.NONE, ("app.x",), Pin.NONE),
        # What is reported is known.
        (sets("TimeZone", "DateStyle"), {}, Pin.NONE, ("DateStyle",), Pin.NONE),
        (Traces(pins=Pin.LISTEN), {"app.x": "1"}, Pin.NONE, (), Pin.LISTEN),
        (Traces(pins=Pin.LOCK | Pin.LIBRARY), {}, Pin.LISTEN, (), Pin.LOCK),
        # What may be gone is asked after if it was there.
        (Traces(frees=True), {}, Pin.LISTEN | Pin.SETTINGS, (), Pin.LISTEN),
        (Traces(frees=True, pins=Pin.CURSOR), {}, Pin.LISTEN, (), Pin.LISTEN | Pin.CURSOR),
        # In another encoding a value is other octets.
        (sets("client_encoding"), {"app.x": "gr\xf6\xdfe"}, Pin.NONE, ("app.x",), Pin.NONE),
    ],
)
def test_what_is_asked(touched: Traces, own: Mapping[str, str], pins: Pin, names: tuple[str, ...], asked: Pin) -> None:
    inquiry = inquire(touched, own, REPORTED, pins=pins, login="app")
    assert inquiry == Inquiry(names, asked, "app")


@pytest.mark.parametrize(
    ("touched", "own", "pins"),
    [
        (NOTHING, {"app.x": "1"}, KNOWN),
        (sets("TimeZone", "search_path"), {"app.x": "1"}, Pin.NONE),
        (sets("client_encoding"), {"app.x": "1"}, Pin.NONE),
        (Traces(resets=True, frees=True), {}, Pin.NONE),
        (Traces(frees=True), {}, Pin.LIBRARY | Pin.SETTINGS),
        (Traces(pins=Pin.LIBRARY | Pin.SETTINGS), {}, Pin.NONE),
    ],
)
def test_what_need_not_be_asked(touched: Traces, own: Mapping[str, str], pins: Pin) -> None:
    assert inquire(touched, own, REPORTED, pins=pins, login="app") is None


def test_a_question_is_plain_ascii_and_trusts_no_search_path() -> None:
    inquiry = Inquiry(("app.x", "role", "statement_timeout"), KNOWN, "app")
    for sql in (inquiry.sql, inquiry.patient_sql):
        assert sql.isascii()
        for operator in (b" = ", b" <> ", b"!="):
            assert operator not in sql


# -- settings ----------------------------------------------------------------------------------------------------------

SETTINGS: Final[dict[str, tuple[list[str], dict[str, str]]]] = {
    "set": (["set lock_timeout = '5s'"], {"lock_timeout": "5s"}),
    "set to what it was": (["set lock_timeout = 0"], {"lock_timeout": "0"}),
    "committed": (["begin", "set lock_timeout = '5s'", "commit"], {"lock_timeout": "5s"}),
    "rolled back": (["begin", "set lock_timeout = '5s'", "rollback"], {}),
    "failed": (["set lock_timeout = 'soon'"], {}),
    "failed together": (["set lock_timeout = '5s'; select 1/0"], {}),
    "reset": (["set lock_timeout = '5s'", "reset lock_timeout"], {}),
    "reset with all": (["set lock_timeout = '5s'", "set app.x = '1'", "reset all"], {}),
    "discarded": (["set lock_timeout = '5s'", "set app.x = '1'", "discard all"], {}),
    "default": (["set lock_timeout = '5s'", "set lock_timeout to default"], {}),
    "local": (["begin", "set local lock_timeout = '5s'", "commit"], {}),
    "local and not": (
        ["begin", "set lock_timeout = '6s'", "set local lock_timeout = '5s'", "rollback"],
        {},
    ),
    "set_config": (["select set_config('lock_timeout', '5s', false)"], {"lock_timeout": "5s"}),
    "set_config local": (["select set_config('lock_timeout', '5s', true)"], {}),
    "custom": (["set app.x = 'it''s'"], {"app.x": "it's"}),
    "custom rolled back": (["begin", "set app.x = '1'", "rollback"], {}),
    "never heard of": ([], {}),
    "nonsense": (["set nonsense = 1"], {}),
}
"""What is run, and what is then told of all the settings in these."""
NAMES: Final = sets("lock_timeout", "app.x", "nonsense", "role", "session_authorization")


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("patient", [False, True])
def test_settings(connection: Connection, case: str, patient: bool) -> None:
    texts, expected = SETTINGS[case]
    run(connection, *texts)
    answer = ask(connection, NAMES, patient=patient)
    assert answer is not None
    assert answer.settings == expected
    assert answer.unset == NAMES.names - expected.keys()
    assert (answer.pins, answer.asked) == (Pin.NONE, Pin.NONE)


def test_savepoints_and_odd_values(connect: Callable[[], Connected]) -> None:
    connection = connect()
    long = "x" * 300_000
    run(
        connection,
        "begin; set app.x = '1'; savepoint s; set app.x = '2'; rollback to s; commit",
        "set app.y = 'größe ''\\ \"'; set work_mem = '1234kB'; set app.empty = ''",
        f"set app.long = '{long}'; set temp_tablespaces = ''",
        "set local lock_timeout = '5s'",
    )
    names = ("app.x", "app.y", "work_mem", "app.empty", "app.long", "temp_tablespaces", "lock_timeout")
    answer = ask(connection, sets(*names))
    assert answer is not None
    assert answer.settings == {
        "app.x": "1",
        "app.y": "größe '\\ \"",
        "work_mem": "1234kB",
        "app.long": long,
        # SET takes it for a list of one name.
        "temp_tablespaces": '""',
    }


def test_a_list_of_names(connect: Callable[[], Connected]) -> None:
    """Reported by 18, and asked of older ones."""
    connection = connect()
    run(connection, 'set search_path = "$user", "B c", public; set lock_timeout = 1')
    answer = ask(connection, sets("search_path", "lock_timeout"))
    assert answer is not None
    reported = {} if "search_path" in connection.parameters else {"search_path": '"$user", "B c", public'}
    assert answer.settings == {"lock_timeout": "1ms", **reported}


@pytest.mark.parametrize(
    ("texts", "restored"),
    [
        ([], {"TimeZone", "DateStyle"}),
        (["set timezone = 'Asia/Tokyo'"], {"DateStyle"}),
        (["set timezone = 'Asia/Tokyo'; reset all"], {"TimeZone", "DateStyle"}),
        (["set timezone = 'Asia/Tokyo'; set datestyle = 'german'; reset timezone"], {"TimeZone"}),
        (["set timezone = 'Asia/Tokyo'", "begin; reset all; rollback"], {"DateStyle"}),
    ],
)
def test_where_reported_settings_come_from(connection: Connection, texts: list[str], restored: set[str]) -> None:
    run(connection, *texts)
    reset = Traces(resets=True)
    inquiry = inquire(
        reset, {}, connection.parameters, pins=Pin.NONE, login=connection.user, began_with=["TimeZone", "DateStyle"]
    )
    assert inquiry is not None and inquiry.origins == ("TimeZone", "DateStyle")
    answer = answer_to(connection, inquiry)
    assert answer.restored == restored
    assert not answer.settings and not answer.unset


def test_who_somebody_is(connect: Callable[[], Connected], server: EmbeddedPostgres) -> None:
    names = sets("role", "session_authorization")
    connection, role = connect(), f'inquired "{next(_numbers)}"'
    quoted = '"' + role.replace('"', '""') + '"'
    run(connection, f"create role {quoted}")
    try:
        for texts, expected in (
            ([f"set role {quoted}"], {"role": role}),
            (["reset all"], {"role": role}),
            (["set role none"], {}),
            ([f"set session authorization {quoted}"], {"session_authorization": role}),
            (["set session authorization default"], {}),
            ([f"begin; set role {quoted}; rollback"], {}),
            ([f"set session authorization {server.user}"], {}),
            ([f"set role {quoted}", "discard all"], {}),
        ):
            run(connection, *texts)
            answer = ask(connection, names)
            assert answer is not None
            assert answer.settings == expected
    finally:
        run(connection, f"drop role {quoted}")


@pytest.mark.parametrize(
    ("touched", "settings"),
    [
        (sets("role"), {"role": "none"}),
        (Traces(frozenset({"role"}), reverts=True), {}),
        (Traces(frozenset({"app.x"}), resets=True), {"role": "none"}),
        (Traces(resets=True, frees=True, reverts=True), {}),
    ],
)
def test_who_began_with_a_role_can_lay_it_down(
    connection: Connection, touched: Traces, settings: dict[str, str]
) -> None:
    """The server says "none" in any case; a reset gives the role back."""
    own = {"role": "none"}
    login = connection.user
    inquiry = inquire(touched, own, connection.parameters, pins=Pin.NONE, login=login, began_with=["role"])
    assert inquiry is not None
    assert answer_to(connection, inquiry).settings == settings


# -- pins --------------------------------------------------------------------------------------------------------------

EVERY: Final = [
    *("listen news", "create temp table mine (a int)"),
    *("select pg_advisory_lock(7)", "declare c cursor with hold for select 1"),
]
PINS: Final[dict[str, tuple[list[str], Pin]]] = {
    "nothing": ([], Pin.NONE),
    "listen": (["listen news"], Pin.LISTEN),
    "listen rolled back": (["begin", "listen news", "rollback"], Pin.NONE),
    "unlisten": (["listen news", "listen more", "unlisten news"], Pin.LISTEN),
    "unlisten all": (["listen news", "unlisten *"], Pin.NONE),
    "temporary": (["create temp table mine (a int)"], Pin.TEMPORARY),
    "temporary, dropped": (["create temp table mine (a int)", "drop table mine"], Pin.NONE),
    "temporary, rolled back": (["begin", "create temp table mine (a int)", "rollback"], Pin.NONE),
    "temporary for the transaction": (["begin", "create temp table mine (a int) on commit drop", "commit"], Pin.NONE),
    "lock": (["select pg_advisory_lock(7)"], Pin.LOCK),
    "lock, and the transaction rolled back": (["begin", "select pg_advisory_lock(7)", "rollback"], Pin.LOCK),
    "lock tried": (["select pg_try_advisory_lock(7)"], Pin.LOCK),
    "lock twice": (["select pg_advisory_lock(7)"] * 2 + ["select pg_advisory_unlock(7)"], Pin.LOCK),
    "unlocked": (["select pg_advisory_lock(7)", "select pg_advisory_unlock(7)"], Pin.NONE),
    "cursor": (["declare c cursor with hold for select 1"], Pin.CURSOR),
    "cursor, closed": (["declare c cursor with hold for select 1", "close c"], Pin.NONE),
    "cursor, rolled back": (["begin", "declare c cursor with hold for select 1", "rollback"], Pin.NONE),
    "all": (EVERY, KNOWN),
    "discarded": ([*EVERY, "discard all"], Pin.NONE),
}


@pytest.mark.parametrize("case", PINS)
@pytest.mark.parametrize("patient", [False, True])
def test_pins(connection: Connection, case: str, patient: bool) -> None:
    texts, expected = PINS[case]
    # The last test's connection may not be gone yet.
    lock = f"({1000 + next(_numbers)})"
    texts = [text.replace("(7)", lock) for text in texts]
    run(connection, *texts)
    answer = ask(connection, Traces(pins=KNOWN), patient=patient)
    assert answer is not None
    assert (answer.pins, answer.asked, answer.settings) == (expected, KNOWN, {})
    # Both in one question.
    answer = ask(connection, Traces(frozenset({"lock_timeout"}), pins=Pin.LOCK), patient=patient)
    assert answer is not None
    assert (answer.pins, answer.asked) == (expected & Pin.LOCK, Pin.LOCK)


def test_what_temporary_things_there_are(connect: Callable[[], Connected]) -> None:
    for text in (
        "create temp sequence s",
        "create temp view v as select 1",
        "create function pg_temp.f() returns int language sql as 'select 1'",
        "create type pg_temp.pair as (a int, b int)",
        "select 1 as a into temp t",
    ):
        connection = connect()
        run(connection, text)
        answer = ask(connection, Traces(pins=Pin.TEMPORARY))
        assert answer is not None and answer.pins == Pin.TEMPORARY, text


def test_a_lock_that_somebody_else_has(connect: Callable[[], Connected]) -> None:
    first, second = connect(), connect()
    run(first, "select pg_advisory_lock(8)")
    assert "DataRow f" in run(second, "select pg_try_advisory_lock(8)")
    answer = ask(second, Traces(pins=Pin.LOCK))
    assert answer is not None and answer.pins == Pin.NONE
