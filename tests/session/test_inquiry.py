"""What a session has left is told by PostgreSQL itself, and read right: by the newest, an older one, and the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

from helpers.debian_postgres import debian
from helpers.postgres_model import PostgresModel
from helpers.raw_postgres import RawConnection
from helpers.transcript import transcript
from pgtrunk.wire.framing import messages
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.session.inquiry import KNOWN, Inquiry, inquire
from pgtrunk_gateway.session.owed import Asking
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.sql.traces import NOTHING, Pin, Traces
from pgtrunk_gateway.session.statements import Prepared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres
    from pgtrunk_gateway.session.inquiry import Answer

__all__ = ["debian"]

REPORTED: Final = {"TimeZone", "client_encoding", "search_path"}
_numbers = itertools.count(1)


def sets(*names: str) -> Traces:
    return Traces(frozenset(names))


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


# -- servers -----------------------------------------------------------------------------------------------------------


class Modelled:
    """The model, in the place of a connection."""

    def __init__(self) -> None:
        self.model = PostgresModel(settings={"session_authorization": "user"})
        self.user = "user"
        self.parameters = self.model.reported
        self._data = b""

    def send(self, data: bytes) -> None:
        self._data += self.model.feed(data)

    def read(self, count: int) -> bytes:
        end = [end for _, _, end in messages(self._data)][count - 1]
        read, self._data = self._data[:end], self._data[end:]
        return read

    def close(self) -> None: ...


class Connected:
    """A connection to a real one, as its superuser."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._connection = RawConnection(server, "postgres")
        self.user = server.user
        self.parameters = dict(self._connection.handshake.parameters)
        self.send, self.read = self._connection.send, self._connection.read

    def close(self) -> None:
        self._connection.__exit__()


Connection = Modelled | Connected


@pytest.fixture(params=["18", "15"])
def server(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    found: EmbeddedPostgres = request.getfixturevalue("postgres" if request.param == "18" else "debian")
    return found


@pytest.fixture
def connect(server: EmbeddedPostgres) -> Iterator[Callable[[], Connected]]:
    opened: list[Connected] = []

    def connect() -> Connected:
        opened.append(Connected(server))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture(params=["18", "15", "model"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    connection: Connection
    if request.param == "model":
        connection = Modelled()
    else:
        connection = Connected(request.getfixturevalue("postgres" if request.param == "18" else "debian"))
    yield connection
    connection.close()


def run(connection: Connection, *texts: str) -> list[str]:
    """What the server says to each query, but for notices."""
    told: list[str] = []
    for text in texts:
        connection.send(query(text.encode()))
        answers = b""
        while answers[-6:-1] != b"Z\0\0\0\5":
            answers += connection.read(1)
        told += [line for line in transcript(answers) if not line.startswith(("Notice", "Parameter"))]
    return told


def ask(
    connection: Connection, touched: Traces, *, pins: Pin = Pin.NONE, patient: bool = False, fails: bool = False
) -> Answer | None:
    """What comes of the inquiry after ``touched``."""
    inquiry = inquire(touched, {}, connection.parameters, pins=pins, login=connection.user)
    assert inquiry is not None
    replies = exchange(connection, inquiry, patient=patient)
    assert replies.failed_inquiry is fails
    return replies.answer


def answer_to(connection: Connection, inquiry: Inquiry) -> Answer:
    answer = exchange(connection, inquiry).answer
    assert answer is not None
    return answer


def exchange(connection: Connection, inquiry: Inquiry, *, patient: bool = False) -> Replies:
    """What the reply side notes of it."""
    replies = Replies(Prepared(10), dict(connection.parameters))
    replies.push(Asking(inquiry))
    connection.send(query(inquiry.patient_sql if patient else inquiry.sql))
    while replies.queue:
        assert replies.feed(connection.read(1)) == b""
    assert replies.in_step
    return replies


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


# -- circumstances -----------------------------------------------------------------------------------------------------

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
