"""What texts may leave behind: each kind is found wherever it stands, ordinary texts have none, and none costs much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.session.sql.bodies import OVERLAP, traces_within
from pgtrunk_gateway.session.sql.text import glance, read
from pgtrunk_gateway.session.sql.traces import NOTHING, Pin, Traces

IDENTITY = ("session_authorization", "role")


def sets(*names: str, pins: Pin = Pin.NONE) -> Traces:
    return Traces(frozenset(names), pins=pins)


def pins(pin: Pin) -> Traces:
    return Traces(pins=pin)


def found(text: bytes, *, escapes: bool = False) -> Traces:
    return read(text, escapes=escapes).traces


FREES, RESETS, UNKNOWN = Traces(frees=True), Traces(resets=True), pins(Pin.SETTINGS)
REVERTS = Traces(reverts=True)

FOUND: dict[bytes, Traces] = {
    # -- settings
    b"set lock_timeout = '5s'": sets("lock_timeout"),
    b"SET Lock_Timeout TO 5": sets("lock_timeout"),
    b"set session work_mem = '1MB'": sets("work_mem"),
    b"set datestyle = 'german'": sets("DateStyle"),
    b'set "TimeZone" to utc': sets("TimeZone"),
    b'set "app"."User" = 1': sets("app.user"),
    b"set app . tenant = 1": sets("app.tenant"),
    b"set time zone 'UTC'": sets("TimeZone"),
    b"set time zone local": sets("TimeZone"),
    b"set time.zone = 1": sets("time.zone"),
    b"set names 'latin1'": sets("client_encoding"),
    b"set schema 'x'": sets("search_path"),
    b"set xml option document": sets("xmloption"),
    b"set role r": sets("role"),
    b"set session role 'r'": sets("role"),
    b"set role none": sets("role"),
    b"set session authorization r": sets(*IDENTITY),
    b"set session session authorization r": sets(*IDENTITY),
    b"set session authorization default": REVERTS | sets(*IDENTITY),
    b"set role to default": REVERTS | sets("role"),
    b"set session characteristics as transaction read only": sets(
        "default_transaction_isolation", "default_transaction_read_only", "default_transaction_deferrable"
    ),
    b"set lock_timeout from current": sets("lock_timeout"),
    b"reset lock_timeout": sets("lock_timeout"),
    b"reset role": REVERTS | sets("role"),
    b"reset time zone": sets("TimeZone"),
    b"reset session authorization": REVERTS | sets(*IDENTITY),
    b"set lock_timeout to default": sets("lock_timeout"),
    b"reset all": RESETS,
    b"-- x\n/* /* */ ; */ set a.b = 1": sets("a.b"),
    b"select 1; set a.b = 1; set c.d = 2": sets("a.b", "c.d"),
    b"begin; set lock_timeout = 1; commit": sets("lock_timeout"),
    b"select ';' ; (select 1); set a.b = 1": sets("a.b"),
    # -- settings that cannot be told
    b'set "\xc3\xa4.x" = 1': UNKNOWN,
    b'set u&"app.x" = 1': UNKNOWN,
    b"set a.b.c = 1": UNKNOWN,
    b"set " + b"x" * 70 + b".y = 1": UNKNOWN,
    # -- set_config
    b"select set_config('lock_timeout', '5s', false)": sets("lock_timeout"),
    b"select pg_catalog.set_config('search_path', '', false)": sets("search_path"),
    b"select \"set_config\"('a.b', $1, $2)": sets("a.b"),
    b"select set_config('a.b'::text, 'x', false)": sets("a.b"),
    b"select set_config('a.b', (select max(x) from t), 'f')": sets("a.b"),
    b"insert into t select set_config('a.b', x, false) from u": sets("a.b"),
    b"with w as (select set_config('a.b', 'x', false)) select 1": sets("a.b"),
    b"select set_config(setting_name => 'a.b', new_value => '1', is_local => false)": sets("a.b"),
    b"select set_config(is_local := false, setting_name := 'a.b', new_value := '1')": sets("a.b"),
    b"select set_config(name, '1', false) from t": UNKNOWN,
    b"select set_config('a.' || 'b', '1', false)": UNKNOWN,
    b"select set_config(E'a.b', '1', false)": UNKNOWN,
    b"select set_config($1, $2, false)": Traces(bound=frozenset({(1, 0)})),
    b"select set_config($1::text, $2, $3::bool)": Traces(bound=frozenset({(1, 3)})),
    b"select set_config($2, $1, is_local => $3), set_config('a.b', $1, $3)": Traces(
        frozenset({"a.b"}), bound=frozenset({(2, 3)})
    ),
    b"prepare p as select set_config('a.b', $1, false)": sets("a.b"),
    # -- what cannot be carried
    b"listen news": pins(Pin.LISTEN),
    b"begin; select 1; Listen news; end": pins(Pin.LISTEN),
    b"load 'auto_explain'": pins(Pin.LIBRARY),
    b"declare c scroll cursor with hold for select 1": pins(Pin.CURSOR),
    b"create temp table t (a int)": pins(Pin.TEMPORARY),
    b"CREATE LOCAL TEMPORARY TABLE IF NOT EXISTS t (a int)": pins(Pin.TEMPORARY),
    b"create table pg_temp.t (a int)": pins(Pin.TEMPORARY),
    b'create table "pg_temp".t (a int)': pins(Pin.TEMPORARY),
    b"create or replace temp view v as select 1": pins(Pin.TEMPORARY),
    b"create function pg_temp.f() returns int language sql as 'select 1'": pins(Pin.TEMPORARY),
    b"explain analyze create temp table t as select 1": pins(Pin.TEMPORARY),
    b"select 1 into temp t": pins(Pin.TEMPORARY),
    b"select 1 as a into temporary table t from u": pins(Pin.TEMPORARY),
    b"with w as (select 1 a) select a into/**/temp t from w": pins(Pin.TEMPORARY),
    b"select 1 into pg_temp.t": pins(Pin.TEMPORARY),
    b"select pg_advisory_lock(1)": pins(Pin.LOCK),
    b"select pg_catalog.pg_try_advisory_lock_shared(1, 2)": pins(Pin.LOCK),
    b'select "pg_try_advisory_lock" (1)': pins(Pin.LOCK),
    b"select pg_advisory_lock(id) from t where a = $1": pins(Pin.LOCK),
    # -- what frees it
    b"unlisten *": FREES,
    b"close all": FREES,
    b"drop table t": FREES,
    b"discard temp": FREES,
    b"select pg_advisory_unlock(1)": FREES,
    b"select pg_advisory_unlock_all()": FREES,
    b"discard all": Traces(resets=True, frees=True, reverts=True),
    b"SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;": Traces(resets=True, frees=True),
    # -- programs
    b"do $$ begin set lock_timeout = 1; end $$": sets("lock_timeout"),
    b"do $$begin if true then reset lock_timeout; end if; end$$": sets("lock_timeout"),
    b"do 'begin perform set_config(''a.b'', x, false); end'": UNKNOWN,
    b"do $x$ begin perform set_config('a.b', '1', false); end $x$ language plpgsql": sets("a.b"),
    b"do $$ begin perform set_config(name, '1', false); end $$": UNKNOWN,
    b"do $$ begin execute format('set %I = 1', x); end $$": UNKNOWN,
    b"do $$ begin execute 'set session a.b = 1'; end $$": sets("a.b"),
    b"do $$ begin\n  -- why\n  set a.b = 1;\nend $$": sets("a.b"),
    b"do $$ begin set session authorization r; end $$": sets(*IDENTITY),
    b"do $$ begin create temp table t (a int); end $$": pins(Pin.TEMPORARY),
    b"do $$ begin perform pg_advisory_lock(1); end $$": pins(Pin.LOCK),
    b"do $$ begin listen news; end $$": pins(Pin.LISTEN),
    b"do $$ begin reset all; end $$": RESETS,
    b"do $$ begin reset role; end $$": REVERTS | sets("role"),
}

NONE = [
    b"",
    b"select 1",
    b"set local lock_timeout = '5s'",
    b"SET LOCAL role r; select 1",
    b"set transaction isolation level serializable",
    b"set transaction_isolation = serializable",
    b"set constraints all deferred",
    b"set seed = 0.5",
    b"reset transaction isolation level",
    b"select set_config('a.b', '1', true)",
    b"select set_config($1, $2, true)",
    b"select set_config('a.b', '1', 't'::bool)",
    b"select pg_advisory_xact_lock(1)",
    b"select pg_try_advisory_xact_lock(1), 'pg_advisory_lock(1)'",
    b"select 'set a.b = 1; listen x'",
    b"select $$; listen x; $$",
    b"update t set a = 1",
    b"update t set temp = 1 where hold",
    b"insert into temp values (1)",
    b"insert into temp select 1",
    b"merge into temp using u on true when matched then delete",
    b"insert into temperatures values (1)",
    b"declare c cursor without hold for select 1",
    b"declare c cursor for select 1",
    b"alter role r set lock_timeout = 1",
    b"create function f() returns int language sql set lock_timeout = 1 as 'select 1'",
    b"create function f() returns int begin atomic select 1; end",
    b"do $$ begin set local lock_timeout = 1; end $$",
    b"do $$ begin update t set a = 1; raise notice 'set up. %', 1; end $$",
    b"notify listen",
    b"select a from listen; select offset_set from load",
]
ORDINARY = [
    b"select * from t where x = 'y'",
    b"select * from settings limit 1 offset 5",
    b"update t set a = 1 where b = 'x;y'",
    b"insert into temperatures values (1, 'a; b')",
    b"insert into t values ('drop, close, listen; it is said')",
    b"  select 1 from datasets",
    b"/* app:shop, set:1 */ update t set a = 2",
    b"-- a comment, set\nselect 1",
    b"(select 1)",
    b"begin",
    b"commit;",
    b"BEGIN; UPDATE t SET a = 1; COMMIT;",
    b"with w as (select 1) select * from w",
    b"copy t from stdin",
]


@pytest.mark.parametrize("text", FOUND)
def test_what_is_found(text: bytes) -> None:
    assert found(text) == FOUND[text]
    assert glance(text, 0, len(text))


@pytest.mark.parametrize("text", NONE)
def test_what_leaves_nothing(text: bytes) -> None:
    assert found(text) == NOTHING


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_texts_are_not_even_read(text: bytes) -> None:
    assert not glance(b"Q\0\0\0\0" + text + b"\0", 5, 5 + len(text))
    assert found(text) == NOTHING


def test_a_backslash_may_be_special_everywhere() -> None:
    text = rb"select 'a\'; set a.b = 1; --'; set c.d = 1"
    assert found(text) == sets("a.b")
    assert found(text, escapes=True) == sets("c.d")


def test_what_cannot_be_read_is_searched() -> None:
    assert found(b"set lock_timeout = '5s'; select 'open") == sets("lock_timeout")
    assert found(b"listen x; select $$ open") == pins(Pin.LISTEN)


_PARTS = st.lists(
    st.sampled_from(
        [
            *(b"set a.b = 1", b"listen x", b"select 1", b"SELECT", b"set_config('a.b', '1', false)", b"reset all"),
            *(b"'x; set'", b"/* ; */", b"/* /* */ select */", b"-- ; set\n", b"$$;$$", b'"q;"', b";", b" ", b"(", b")"),
            *(b"into temp t", b"create temp table t()", b"drop table t", b"pg_advisory_lock(1)"),
            *(b"do $$ set a.b = 1 $$", b"prepare p as", b"execute p"),
            *(b"close c", b"discard all", b"load 'x'", b"with hold", b"declare c cursor"),
        ]
    ),
    max_size=8,
)


@given(_PARTS, st.sampled_from([b"", b" ", b"\n"]))
def test_a_glance_never_misses_what_reading_finds(parts: list[bytes], between: bytes) -> None:
    text = between.join(parts)
    if not glance(text + b"\0", 0, len(text)):
        reading = read(text, escapes=False)
        assert reading.traces == NOTHING
        assert not reading.naming


@given(_PARTS)
def test_searching_finds_what_reading_finds_in_commands_that_are_plain(parts: list[bytes]) -> None:
    text = b"; ".join(part for part in parts if not part.startswith((b"/*", b"--", b"load", b"SELECT")))
    read_, searched = found(text), traces_within(text)
    assert read_.names <= searched.names
    assert (read_.pins & ~Pin.LIBRARY) & ~searched.pins == 0
    assert (searched.resets or not read_.resets) and (searched.frees or not read_.frees)


@given(st.binary(max_size=80))
def test_anything_can_be_searched(text: bytes) -> None:
    for body in (False, True):
        for more in (False, True):
            traces_within(text, body=body, more=more)


# -- long texts --------------------------------------------------------------------------------------------------------


def test_a_long_text_is_searched() -> None:
    filler = b"insert into t values (" + b"'the set of data; drop it', " * 20_000 + b"1);\n"
    text = filler + b"  SET search_path = x;\nlisten news;\n" + filler
    traces = found(text)
    assert "search_path" in traces.names
    assert traces.pins & Pin.LISTEN
    assert not traces.pins & Pin.SETTINGS


@pytest.mark.parametrize("body", [False, True])
def test_names_in_data_are_no_reason_to_pin(body: bool) -> None:
    assert not traces_within(b"values ('set 1st', 'set %', 'set up.', 'set (a, b)')", body=body).pins


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_text_in_parts_is_searched_over_their_edges(cut: int) -> None:
    end = b"\nselect set_config('a.b', '1', false); set lock_timeout = 1; x"
    text = b"insert into t values (1);\n" + b"-" * 300 + end
    whole = traces_within(text)
    assert whole.names == {"a.b", "lock_timeout"} and not whole.pins
    for place in (len(text) - cut, len(text) - cut - 10):
        first, rest = text[:place], text[place:]
        traces = traces_within(first, more=True) | traces_within(first[-OVERLAP:] + rest)
        assert traces.names >= whole.names
        assert not traces.pins


@pytest.mark.parametrize(
    "text",
    [
        b"insert into t values ('" + b"a set of things; " * 100_000 + b"')",
        b"insert into t values " + b"('x', 'set a'),\n" * 100_000,
        b"select '" + b"set " * 300_000 + b"'; select 1",
        b"/*" + b" comment; " * 100_000 + b"*/ set a.b = 1",
        b"set " * 300_000,
        b";" * 300_000,
        b"select 1; " + b" " * 300_000 + b"(" * 300_000,
    ],
    ids=["prose", "rows", "words", "comment", "sets", "semicolons", "blanks"],
)
def test_a_long_text_does_not_keep_all_sessions_waiting(text: bytes) -> None:
    """Where something is not linear, this does not end in time."""
    glance(text, 0, len(text))
    found(text)


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "values", "expected"),
    [
        ((1, 0), [b"Lock_Timeout", b"5s"], sets("lock_timeout")),
        ((1, 3), [b"a.b", b"1", b"f"], sets("a.b")),
        ((1, 3), [b"a.b", b"1", b"\0"], sets("a.b")),
        ((1, 3), [b"a.b", b"1", None], sets("a.b")),
        ((1, 3), [b"a.b", b"1", b"t"], NOTHING),
        ((1, 3), [b"a.b", b"1", b"\1"], NOTHING),
        ((2, 0), [b"x", b"timezone"], sets("TimeZone")),
        ((1, 0), [None], NOTHING),
        ((1, 0), [b"gr\xc3\xb6\xc3\x9fe"], UNKNOWN),
        ((1, 0), [], UNKNOWN),
        ((1, 3), [b"a.b", b"1"], UNKNOWN),
    ],
)
def test_names_that_are_parameters(bound: tuple[int, int], values: list[bytes | None], expected: Traces) -> None:
    traces = Traces(bound=frozenset({bound}))
    assert traces.resolved(values) == expected
    assert traces
    assert not traces.unbound


def test_traces_add_up() -> None:
    one, other = sets("a.b", pins=Pin.LOCK), Traces(frozenset({"c.d"}), resets=True, pins=Pin.LISTEN, frees=True)
    both = one | other
    assert both == Traces(frozenset({"a.b", "c.d"}), resets=True, pins=Pin.LOCK | Pin.LISTEN, frees=True)
    assert both.carried == Traces(frozenset({"a.b", "c.d"}), resets=True)
    assert both.pins.words == "LISTEN, advisory lock"
    assert (one | NOTHING) == one
    assert not NOTHING
    assert Pin.NONE.words == ""
