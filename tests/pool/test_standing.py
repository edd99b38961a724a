"""What a server is, by what it reports or answers, and whether that is what is asked for, as libpq has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from pgtrunk.wire import backend as b
from pgtrunk.wire.framing import MessageReader
from pgtrunk_gateway.config.entries import SessionAttrs
from pgtrunk_gateway.errors import BackendRefused
from pgtrunk_gateway.pool.standing import Question, Standing, qualifies, reported

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIMARY = {"in_hot_standby": "off", "default_transaction_read_only": "off"}
READ_ONLY_PRIMARY = {"in_hot_standby": "off", "default_transaction_read_only": "on"}
STANDBY = {"in_hot_standby": "on", "default_transaction_read_only": "off"}
OLD = {"server_version": "13.1"}


@pytest.mark.parametrize(
    ("parameters", "fitting"),
    [
        (PRIMARY, {"any", "primary", "read-write"}),
        (READ_ONLY_PRIMARY, {"any", "primary", "read-only"}),
        (STANDBY, {"any", "standby", "prefer-standby", "read-only"}),
    ],
    ids=["primary", "read-only primary", "standby"],
)
def test_what_postgresql_14_reports_is_enough(parameters: Mapping[str, str], fitting: set[str]) -> None:
    standing = reported(parameters)
    assert {attrs for attrs in get_args(SessionAttrs) if qualifies(standing, attrs)} == fitting
    assert None not in {qualifies(standing, attrs) for attrs in get_args(SessionAttrs)}


def test_of_an_older_one_nothing_is_known() -> None:
    standing = reported(OLD)
    assert standing == Standing()
    assert [attrs for attrs in get_args(SessionAttrs) if qualifies(standing, attrs) is not None] == ["any"]


@pytest.mark.parametrize(
    ("attrs", "sql", "value", "fits"),
    [
        ("primary", "SELECT pg_catalog.pg_is_in_recovery()", b"f", True),
        ("primary", "SELECT pg_catalog.pg_is_in_recovery()", b"t", False),
        ("standby", "SELECT pg_catalog.pg_is_in_recovery()", b"t", True),
        ("prefer-standby", "SELECT pg_catalog.pg_is_in_recovery()", b"f", False),
        ("read-write", "SHOW transaction_read_only", b"off", True),
        ("read-write", "SHOW transaction_read_only", b"on", False),
        ("read-only", "SHOW transaction_read_only", b"on", True),
    ],
)
def test_it_is_asked(attrs: SessionAttrs, sql: str, value: bytes, fits: bool) -> None:
    question = Question(reported(OLD), attrs)
    assert question.sql == sql
    feed(question, b.parameter_status("a", "b") + b.data_row([value]) + b.command_complete("SELECT 1"))
    assert not question.done
    feed(question, b.ready())
    assert question.done
    assert qualifies(question.standing, attrs) is fits


def test_a_physical_replication_connection_is_asked_what_it_can_answer() -> None:
    question = Question(reported(OLD), "primary", physical=True)
    assert question.sql == "SHOW transaction_read_only"
    feed(question, b.data_row([b"on"]) + b.ready())
    assert qualifies(question.standing, "primary") is False


@pytest.mark.parametrize("row", [b"", b"\0\0", b"\0\1\xff\xff\xff\xff", b"\0\2\0\0\0\1t\0\0\0\1t"])
def test_an_answer_that_is_none_is_a_no(row: bytes) -> None:
    question = Question(reported(OLD), "standby")
    question.feed(ord("D"), row)
    assert qualifies(question.standing, "standby") is False


def test_an_error_is_told() -> None:
    question = Question(reported(OLD), "read-write")
    with pytest.raises(BackendRefused, match="no such thing") as raised:
        feed(question, b.error("42704", "no such thing"))
    assert raised.value.sqlstate == "42704"
    assert "SHOW transaction_read_only" in (raised.value.detail or "")


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (Standing(), "not known"),
        (Standing(standby=True, writable=False), "a standby"),
        (Standing(standby=False, writable=True), "a primary"),
        (Standing(standby=False, writable=False), "read-only"),
        (Standing(writable=True), "writable"),
    ],
)
def test_words(standing: Standing, words: str) -> None:
    assert str(standing) == words


def feed(question: Question, data: bytes) -> None:
    reader = MessageReader(1 << 20)
    reader.feed(data)
    while (message := reader.next()) is not None:
        question.feed(*message)
