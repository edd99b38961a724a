"""What Patroni's answers mean, and answers that mean nothing."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fake_patroni import described
from pgtrunk_gateway.config.entries import Place
from pgtrunk_gateway.pool.cluster import NoCluster, places, read_cluster

if TYPE_CHECKING:
    from pgtrunk_gateway.config.entries import SessionAttrs

LEADER = described("10.0.0.1", 5432, "leader")
REPLICA = described("10.0.0.2", 5433, "replica", "streaming", lag=0)
SYNC = described("10.0.0.3", 5432, "sync_standby", "running")


def document(*members: Any) -> bytes:
    return json.dumps({"members": members, "scope": "demo"}).encode()


def found(attrs: SessionAttrs, *members: Any) -> list[tuple[str, int]]:
    return [(place.host, place.port) for place in places(read_cluster(document(*members)), attrs)]


def test_members() -> None:
    assert found("primary", REPLICA, LEADER, SYNC) == [("10.0.0.1", 5432)]
    assert found("read-write", REPLICA, LEADER, SYNC) == [("10.0.0.1", 5432)]
    assert found("any", REPLICA, LEADER, SYNC) == [("10.0.0.1", 5432)]
    assert found("standby", REPLICA, LEADER, SYNC) == [("10.0.0.2", 5433), ("10.0.0.3", 5432)]
    assert found("read-only", REPLICA, LEADER, SYNC) == [("10.0.0.2", 5433), ("10.0.0.3", 5432)]
    assert found("prefer-standby", LEADER, REPLICA) == [("10.0.0.2", 5433), ("10.0.0.1", 5432)]


@pytest.mark.parametrize("role", ["leader", "master", "primary", "standby_leader"])
def test_a_leader_by_any_name(role: str) -> None:
    assert found("primary", described("h", 1, role)) == [("h", 1)]


@pytest.mark.parametrize(
    "member",
    [
        described("h", 1, "replica", "stopped"),
        described("h", 1, "replica", "starting"),
        described("h", 1, "replica", "creating replica"),
        described("h", 1, "replica", "streaming", tags={"noloadbalance": True}),
        {"name": "h", "role": "replica", "state": "uninitialized"},
    ],
    ids=["stopped", "starting", "creating", "no load balance", "without an address"],
)
def test_replicas_that_are_not_to_be_read_from(member: dict[str, Any]) -> None:
    assert found("standby", LEADER, member) == []


def test_while_there_is_no_leader() -> None:
    assert found("primary", REPLICA) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"members": 7}',
        b'{"members": ["a"]}',
        b'{"members": [{"host": 7, "port": 5432}]}',
        b'{"members": [{"host": "h", "port": "5432"}]}',
        b'{"members": [{"host": "h", "port": 0}]}',
        b'{"members": [{"host": "h", "port": 65536}]}',
        b'{"members": [{"host": "h", "port": 1, "state": "running", "tags": 7}]}',
        b"[" * 100_000,
    ],
)
def test_no_answer(answer: bytes) -> None:
    with pytest.raises(NoCluster):
        read_cluster(answer)


KEYS = st.sampled_from(["members", "host", "port", "role", "state", "tags"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(ANYTHING)
def test_anything_else_is_an_answer_or_none(said: Any) -> None:
    for each in (said, {"members": said}, {"members": [said]}):
        with contextlib.suppress(NoCluster):
            read_cluster(json.dumps(each).encode())


def test_a_place_is_what_connections_go_by() -> None:
    assert places(read_cluster(document(LEADER)), "primary") == (Place("10.0.0.1", 5432),)
