"""The places where a sidecar listens, as people type them."""

from __future__ import annotations

import pytest

from pgtrunk.errors import UsageError
from pgtrunk.sidecar.endpoint import Endpoint, TcpEndpoint, UnixEndpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint", "shown"),
    [
        ("/run/pgtrunk", UnixEndpoint("/run/pgtrunk"), "/run/pgtrunk/.s.PGSQL.5432"),
        ("/run/pgtrunk/:5433", UnixEndpoint("/run/pgtrunk/", 5433), "/run/pgtrunk/.s.PGSQL.5433"),
        ("./here", UnixEndpoint("./here"), "./here/.s.PGSQL.5432"),
        ("/a:b", UnixEndpoint("/a:b"), "/a:b/.s.PGSQL.5432"),
        ("127.0.0.1:5433", TcpEndpoint("127.0.0.1", 5433), "127.0.0.1:5433"),
        ("localhost:0", TcpEndpoint("localhost", 0), "localhost:0"),
        ("[::1]:5433", TcpEndpoint("::1", 5433), "[::1]:5433"),
    ],
)
def test_places(text: str, endpoint: Endpoint, shown: str) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == shown


@pytest.mark.parametrize("text", ["", "5433", ":5433", "localhost", "::1:5433", "a b:1", "@abstract", "@abstract:1"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError, match="is no place to listen at: a folder"):
        parse_endpoint(text)


@pytest.mark.parametrize("text", ["localhost:x", "localhost:65536", "localhost:", "/run:0", "/run:65536"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(UsageError, match="is no place to listen at: the port is a number"):
        parse_endpoint(text)
