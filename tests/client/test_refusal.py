"""The words that a refused caller reads."""

from __future__ import annotations

import pytest

from pgtrunk.decisions import Full, LinkGone, Refusal, Shut, Unreachable
from pgtrunk.errors import (
    CertificateError,
    GatewayUnreachable,
    SessionLost,
    TrunkClosed,
    TrunkError,
    TrunkFull,
    UdpBlocked,
)
from pgtrunk.refusal import Limit, error_for, seconds

LIMIT = Limit("acquire_timeout", 10.0, deadline=123.0)
CAUSE = GatewayUnreachable("nothing listens there")


def full(**changes: object) -> Full:
    facts: dict[str, object] = {
        "waited": 10.0, "waiting": 37, "oldest": 12.34, "ready": 4, "connections": 4, "sessions": 400,
        "streams_per_connection": 100, "limited_by_gateway": 0, "cause": None,
    }  # fmt: skip
    return Full(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("why", "kind", "words"),
    [
        (
            full(),
            TrunkFull,
            (
                "no stream became free within acquire_timeout=10 s (waited 10 s): "
                "37 callers wait, the first for 12.34 s; "
                "4 of connections=4 open with 400 streams in use; streams_per_connection=100 decided; "
                "close sessions sooner, or raise connections"
            ),
        ),
        (
            full(waiting=1, limited_by_gateway=4, sessions=224),
            TrunkFull,
            (
                "no stream became free within acquire_timeout=10 s (waited 10 s): nobody else waits; "
                "4 of connections=4 open with 224 streams in use; "
                "the gateway allows no more streams (its quic_max_streams, less a reserve for cancels); "
                "close sessions sooner, or raise connections"
            ),
        ),
        (
            full(waiting=1, ready=2, limited_by_gateway=2, sessions=50, own_limit="tcp_connections=50"),
            TrunkFull,
            (
                "no stream became free within acquire_timeout=10 s (waited 10 s): nobody else waits; "
                "2 of connections=4 open with 50 streams in use; tcp_connections=50 decided; "
                "close sessions sooner, or raise it"
            ),
        ),
        (
            full(ready=2, sessions=160, limited_by_gateway=1, cause=CAUSE),
            TrunkFull,
            (
                "no stream became free within acquire_timeout=10 s (waited 10 s): "
                "37 callers wait, the first for 12.34 s; "
                "2 of connections=4 open with 160 streams in use; streams_per_connection=100 decided, "
                "and on 1 of them what the gateway allows (its quic_max_streams), "
                "and a further connection could not be opened: nothing listens there"
            ),
        ),
        (
            full(ready=1, sessions=100, suspect=3, waiting=1),
            TrunkFull,
            (
                "no stream became free within acquire_timeout=10 s (waited 10 s): nobody else waits; "
                "1 of connections=4 open with 100 streams in use, and 3 more that do not answer; "
                "streams_per_connection=100 decided; close sessions sooner, or raise connections"
            ),
        ),
        (
            Unreachable(waited=0.0, failures=1, down=0.0, retry_in=0.1, cause=CAUSE),
            GatewayUnreachable,
            (
                "gateway gw:6432 cannot be reached, given up at once: it failed because nothing listens there; "
                "the next attempt is due in 0.1 s"
            ),
        ),
        (
            Unreachable(waited=10.0, failures=5, down=11.0, retry_in=None, cause=CAUSE),
            GatewayUnreachable,
            (
                "gateway gw:6432 cannot be reached, given up after 10 s of acquire_timeout=10 s: "
                "it failed 5 times in 11 s, at last because nothing listens there"
            ),
        ),
        (
            Unreachable(waited=10.0, failures=0, down=10.0, retry_in=None, cause=None),
            GatewayUnreachable,
            "gateway gw:6432 did not answer within acquire_timeout=10 s: is it running, and does UDP reach it?",
        ),
        (
            Unreachable(waited=0.0, failures=1, down=0.0, retry_in=0.1, cause=CertificateError("it has expired")),
            CertificateError,
            "gateway gw:6432 cannot be used: it has expired",
        ),
        (
            Unreachable(waited=0.0, failures=1, down=0.0, retry_in=None, cause=UdpBlocked("only TCP gets through")),
            UdpBlocked,
            "gateway gw:6432 cannot be reached, given up at once: it failed because only TCP gets through",
        ),
        (
            LinkGone(),
            SessionLost,
            "the connection of the session that was to be cancelled is lost, and the session with it",
        ),
        (Shut(), TrunkClosed, "the trunk to gw:6432 was closed while this caller waited for a stream"),
    ],
)
def test_each_says_what_happened_what_decided_and_what_to_do(why: Refusal, kind: type[TrunkError], words: str) -> None:
    error = error_for(why, LIMIT, "gw:6432")
    assert type(error) is kind
    assert str(error) == words
    assert error.retry_safe


def test_what_is_known_of_a_certificate_is_passed_on() -> None:
    cause = CertificateError("it is another's", presented=["gw1.example"], expected="gw.example")
    error = error_for(Unreachable(waited=0.0, failures=1, down=0.0, retry_in=0.1, cause=cause), LIMIT, "gw:6432")
    assert isinstance(error, CertificateError)
    assert (error.presented, error.expected) == (("gw1.example",), "gw.example")


def test_the_cause_is_chained_and_each_caller_has_an_error_of_its_own() -> None:
    why = Unreachable(waited=1.0, failures=1, down=1.0, retry_in=None, cause=CAUSE)
    first, second = error_for(why, LIMIT, "gw"), error_for(why, LIMIT, "gw")
    assert first is not second
    assert first.__cause__ is second.__cause__ is CAUSE


@pytest.mark.parametrize(("value", "text"), [(10, "10 s"), (0.25, "0.25 s"), (100.0, "100 s"), (0.001, "0 s")])
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text
