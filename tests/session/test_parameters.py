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
    profile,
    startup_value,
    tracked_name,
)

BASE = dict.fromkeys(TRACKED, "x") | {"client_encoding": "UTF8"}


def applied(**wanted: str) -> str:
    return apply(profile(BASE), profile(BASE | wanted)).decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", TRACKED)
def test_names_in_any_case(name: str) -> None:
    assert tracked_name(name.upper()) == tracked_name(name.lower()) == name


@pytest.mark.parametrize("name", ["work_mem", "", "user", "datestyle "])
def test_other_names(name: str) -> None:
    assert tracked_name(name) is None


@pytest.mark.parametrize("value", ["utf8", "UTF8", "utf-8", "Unicode", "'UTF-8'"])
def test_spellings_of_utf8(value: str) -> None:
    assert startup_value("client_encoding", value) == "UTF8"


def test_other_values_are_left_to_the_server() -> None:
    assert startup_value("client_encoding", "latin1") == "latin1"
    assert startup_value("TimeZone", "utf8") == "utf8"


def test_a_profile_has_what_is_reported_in_one_order() -> None:
    assert profile({"TimeZone": "UTC", "server_version": "18"}) == (None, None, "UTC", *[None] * (len(TRACKED) - 3))
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
    wanted: Profile = tuple(value.replace("\0", "") if value is not None else None for value in values)
    sql = apply(profile(BASE), wanted)
    assert b"\0" not in sql
    assert sql.count(b"SET ") + sql.count(b"set_config") >= sum(
        value is not None and value != was for value, was in zip(wanted, profile(BASE), strict=True)
    )
