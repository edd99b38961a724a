"""Which settings a startup packet asks for, and which replication."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.errors import LoginRefused
from pgtrunk_gateway.pool.walsender import Replication
from pgtrunk_gateway.relay.wishes import forwarded, part, replication, settings, with_host


def wanted(*ignored: str, **packet: str) -> dict[str, str]:
    return settings({"user": "app", "database": "shop", **packet}, ignored)


def test_who_and_where_are_no_settings() -> None:
    assert wanted(replication="off", options="") == {}


def test_each_setting_has_one_name() -> None:
    assert wanted(DATESTYLE="German", Work_Mem="1MB", options="--Lock-Timeout=5s") == {
        "DateStyle": "German",
        "work_mem": "1MB",
        "lock_timeout": "5s",
    }


def test_the_packet_overrides_its_options_and_the_last_one_counts() -> None:
    assert wanted(options="-c work_mem=1MB -c work_mem=2MB -c timezone=GMT", timezone="UTC") == {
        "work_mem": "2MB",
        "TimeZone": "UTC",
    }


@pytest.mark.parametrize(
    ("ignored", "left"),
    [
        ((), {"work_mem", "lock_timeout", "TimeZone"}),
        (("work_mem",), {"lock_timeout", "TimeZone"}),
        (("WORK_MEM", "lock_timeout"), {"TimeZone"}),
        (("options",), {"work_mem", "TimeZone"}),
        (("TimeZone", "options"), {"work_mem", "TimeZone"}),
    ],
)
def test_ignore_startup_parameters(ignored: tuple[str, ...], left: set[str]) -> None:
    assert set(wanted(*ignored, work_mem="1MB", options="-c lock_timeout=5s -c timezone=GMT")) == left


@pytest.mark.parametrize("name", ["", "work mem", "a.b.c", "a.", "1a", 'a"b', "größe", "a;b", "x" * 64, "a-b"])
def test_names_that_no_setting_has(name: str) -> None:
    with pytest.raises(LoginRefused, match="unrecognized configuration parameter") as caught:
        wanted(**{name: "x"})
    assert caught.value.sqlstate == "42704"


def test_what_the_server_does_not_report_is_apart() -> None:
    asked = {"TimeZone": "UTC", "search_path": "a", "work_mem": "1MB", "server_version": "99"}
    reported = {"TimeZone": "GMT", "server_version": "18"}
    assert part(asked, reported, ()) == (
        {"TimeZone": "UTC"},
        {"search_path": "a", "work_mem": "1MB", "server_version": "99"},
    )
    assert part(asked, reported, ("search_path", "TimeZone"))[1] == {"work_mem": "1MB", "server_version": "99"}


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({}, "app - 192.0.2.1:40000"),
        ({"application_name": "shop"}, "shop - 192.0.2.1:40000"),
        ({"application_name": "x" * 70}, "x" * 45 + " - 192.0.2.1:40000"),
        ({"application_name": "x" * 44 + "é"}, "x" * 44 + " - 192.0.2.1:40000"),
    ],
)
def test_the_clients_address_in_its_application_name(wanted: dict[str, str], name: str) -> None:
    assert with_host({**wanted, "DateStyle": "ISO"}, "192.0.2.1:40000") == {
        "application_name": name,
        "DateStyle": "ISO",
    }


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("database", Replication.LOGICAL),
        ("TRUE", Replication.PHYSICAL),
        ("y", Replication.PHYSICAL),
        ("on", Replication.PHYSICAL),
        ("f", None),
        ("No", None),
        ("of", None),
        ("0", None),
        (None, None),
    ],
)
def test_replication_is_a_boolean_and_more(value: str | None, kind: Replication | None) -> None:
    assert replication({} if value is None else {"replication": value}) is kind


@pytest.mark.parametrize("value", ["", "o", "DATABASE", "databases", "onn", "00"])
def test_replication_that_is_neither(value: str) -> None:
    with pytest.raises(LoginRefused, match="invalid value for parameter") as caught:
        replication({"replication": value})
    assert caught.value.sqlstate == "22023"


def test_a_replication_connection_says_what_its_client_has_said() -> None:
    packet = {
        "user": "app",
        "database": "shop",
        "replication": "true",
        "options": "-d 3",
        "TimeZone": "UTC",
        "seed": "1",
    }
    said = {name: value for name, value in packet.items() if name not in ("user", "database")}
    assert forwarded(packet, ()) == said
    del said["seed"]
    assert forwarded(packet, ("SEED", "timezone", "options", "replication")) == said
