"""The settings that follow a session: their names, their profile, and the SQL that carries them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.postgres_sql import literal
from pgtrunk_gateway.session.parameters import (
    TRACKED,
    Profile,
    apply,
    changed,
    dialect,
    doubted,
    is_lasting,
    pack,
    profile,
    setting_name,
    startup_value,
    unpack,
    with_value,
)

BASE = dict.fromkeys(TRACKED, "x") | {"client_encoding": "UTF8"}


def applied(**wanted: str) -> str:
    return apply(profile(BASE), profile(BASE | wanted)).decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", TRACKED)
def test_names_in_any_case(name: str) -> None:
    assert setting_name(name.upper()) == setting_name(name.lower()) == name


@pytest.mark.parametrize("name", ["work_mem", "", "user", "datestyle "])
def test_other_names(name: str) -> None:
    assert setting_name(name.upper()) == name


@pytest.mark.parametrize("value", ["utf8", "UTF8", "utf-8", "Unicode", "'UTF-8'"])
def test_spellings_of_utf8(value: str) -> None:
    assert startup_value("client_encoding", value) == "UTF8"


def test_other_values_are_left_to_the_server() -> None:
    assert startup_value("client_encoding", "latin1") == "latin1"
    assert startup_value("TimeZone", "utf8") == "utf8"


def test_a_profile_has_what_is_reported_in_one_order() -> None:
    assert profile({"TimeZone": "UTC", "server_version": "18"}) == (None, None, "UTC", *[None] * (len(TRACKED) - 3), "")
    assert profile(BASE) == profile(dict(reversed(BASE.items())))


def test_what_has_changed() -> None:
    old, new = profile({"TimeZone": "UTC", "DateStyle": "ISO"}), profile({"TimeZone": "GMT", "application_name": "a"})
    assert list(changed(old, new)) == [("TimeZone", "GMT"), ("application_name", "a")]
    assert list(changed(old, old)) == []


def test_the_dialect_is_what_decides_the_meaning_of_a_text() -> None:
    base = profile(BASE)
    for name in TRACKED:
        decides = name in ("client_encoding", "standard_conforming_strings", "DateStyle", "IntervalStyle", "TimeZone")
        assert (dialect(profile(BASE | {name: "other"})) != dialect(base)) is decides, name


# -- SQL -------------------------------------------------------------------------------------------------------------


def test_nothing_to_do_is_nothing_to_say() -> None:
    assert apply(profile(BASE), profile(BASE)) == b""
    assert apply(profile({}), profile({})) == b""


def test_only_what_differs_is_set() -> None:
    assert applied(TimeZone="Asia/Tokyo") == "SET TimeZone='Asia/Tokyo'"
    assert applied(DateStyle="German", application_name="a") == "SET DateStyle='German';SET application_name='a'"


def test_what_the_server_does_not_report_is_left_alone() -> None:
    current, wanted = profile({"TimeZone": "UTC"}), profile({"TimeZone": "GMT", "search_path": "a"})
    assert apply(current, wanted) == b"SET TimeZone='GMT'"


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("", "''"),
        ("it's", "'it''s'"),
        ("'; drop table t; --", "'''; drop table t; --'"),
        ("back\\slash", "E'back\\\\slash'"),
        ("\\'", "E'\\\\'''"),
        ("\\", "E'\\\\'"),
    ],
)
def test_quoting(value: str, quoted: str) -> None:
    assert applied(application_name=value) == f"SET application_name={quoted}"


@given(st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=40))
def test_a_value_comes_out_as_it_went_in_whatever_is_in_it(value: str) -> None:
    sql = applied(application_name=value)
    if value == "x":
        assert sql == ""
    else:
        assert sql.startswith("SET application_name=")
        assert literal(sql.removeprefix("SET application_name=")) == value


def test_values_of_any_length() -> None:
    """PgBouncer does not set what is longer than 126 octets quoted."""
    path = ",".join(f"schema_{number}" for number in range(200))
    assert path in applied(search_path=path)


def test_a_list_is_not_set_as_one_name() -> None:
    assert applied(search_path='"$user", public') == (
        "SELECT pg_catalog.set_config('search_path','\"$user\", public',false)"
    )


def test_a_value_that_is_not_ascii_is_carried_in_the_encoding_of_its_session() -> None:
    value = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert applied(client_encoding="LATIN1", search_path=value) == (
        "SET client_encoding='LATIN1';SELECT pg_catalog.set_config('search_path',"
        "pg_catalog.convert_from(pg_catalog.decode('636166e9','hex'),'LATIN1'),false)"
    )


@given(st.lists(st.none() | st.text(max_size=5), min_size=len(TRACKED), max_size=len(TRACKED)))
def test_any_profile_gives_sql_that_can_be_sent(values: list[str | None]) -> None:
    wanted: Profile = (*(value.replace("\0", "") if value is not None else None for value in values), "")
    sql = apply(profile(BASE), wanted)
    assert b"\0" not in sql
    assert sql.count(b"SET ") + sql.count(b"set_config") >= sum(
        value is not None and value != was for value, was in zip(wanted, profile(BASE), strict=True)
    )


# -- what is not reported --------------------------------------------------------------------------------------------


def other(now: dict[str, str | None], then: dict[str, str | None]) -> str:
    return apply(profile(BASE, pack(now)), profile(BASE, pack(then))).decode()


@given(st.dictionaries(st.from_regex("[a-z_.]+", fullmatch=True), st.none() | st.text(st.characters(min_codepoint=1))))
def test_others_are_packed_and_unpacked(others: dict[str, str | None]) -> None:
    assert unpack(pack(others)) == others
    assert pack(dict(reversed(others.items()))) == pack(others)
    assert unpack(doubted(pack(others))) == dict.fromkeys(others)


@pytest.mark.parametrize(
    ("now", "then", "sql"),
    [
        ({}, {}, ""),
        ({}, {"lock_timeout": "5s"}, "SET \"lock_timeout\"='5s'"),
        ({"lock_timeout": "5s"}, {"lock_timeout": "5s"}, ""),
        ({"lock_timeout": "5s"}, {"lock_timeout": "6s"}, "SET \"lock_timeout\"='6s'"),
        ({"lock_timeout": "5s"}, {}, 'RESET "lock_timeout"'),
        ({"lock_timeout": None}, {}, 'RESET "lock_timeout"'),
        ({"lock_timeout": None}, {"lock_timeout": "5s"}, "SET \"lock_timeout\"='5s'"),
        ({"b": "1", "c": "1"}, {"a": "1", "c": "2"}, 'RESET "b";SET "a"=\'1\';SET "c"=\'2\''),
        ({}, {"app.user": "it's"}, "SET \"app\".\"user\"='it''s'"),
        ({}, {"temp_tablespaces": "a,b"}, "SELECT pg_catalog.set_config('temp_tablespaces','a,b',false)"),
        # Others may need the rights that the login has.
        ({"role": "a", "b": "1"}, {"work_mem": "1"}, 'RESET "role";RESET "b";SET "work_mem"=\'1\''),
        ({}, {"role": "a", "work_mem": "1"}, "SET \"work_mem\"='1';SET \"role\"='a'"),
        # Whose session it is decides first: to change that undoes a role.
        (
            {},
            {"role": "a", "session_authorization": "b"},
            "SET \"session_authorization\"='b';SET \"role\"='a'",
        ),
        (
            {"role": "a", "session_authorization": "b"},
            {"role": "a"},
            'RESET "session_authorization";SET "role"=\'a\'',
        ),
        (
            {"role": "a"},
            {"role": "a", "session_authorization": "b"},
            "SET \"session_authorization\"='b';SET \"role\"='a'",
        ),
        ({"role": "a", "session_authorization": "b"}, {}, 'RESET "role";RESET "session_authorization"'),
    ],
)
def test_what_is_not_reported_is_set_and_reset(
    now: dict[str, str | None], then: dict[str, str | None], sql: str
) -> None:
    """In a transaction: where one fails, what is sent behind fails too."""
    assert other(now, then) == (f"BEGIN;{sql};COMMIT" if sql else "")


def test_what_is_reported_comes_first() -> None:
    wanted = profile(BASE | {"TimeZone": "UTC"}, pack({"lock_timeout": "1"}))
    assert apply(profile(BASE), wanted) == b"BEGIN;SET TimeZone='UTC';SET \"lock_timeout\"='1';COMMIT"


def test_a_role_may_be_refused_one_day() -> None:
    assert is_lasting(profile(BASE))
    assert is_lasting(profile(BASE, pack({"work_mem": "1", "app.role": "x"})))
    assert not is_lasting(profile(BASE, pack({"work_mem": "1", "role": "x"})))


def test_one_value_of_many() -> None:
    changed_one = with_value(profile(BASE, "o"), "TimeZone", "UTC")
    assert list(changed(profile(BASE), changed_one)) == [("TimeZone", "UTC")]
    assert changed_one[-1] == "o"


def test_an_encoding_that_is_none_is_not_sent_as_it_is() -> None:
    """The backend reads it in the encoding of whoever used it last, in which a backslash may be half a character."""
    wanted = profile(BASE | {"client_encoding": "\udc81\\", "application_name": "\udc81\\"})
    assert apply(profile(BASE), wanted).isascii()
