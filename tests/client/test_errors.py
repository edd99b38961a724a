"""What the errors know beside their words."""

from __future__ import annotations

import pickle

import pytest

from pgtrunk import errors
from pgtrunk.errors import (
    AcquireTimeout,
    CertificateError,
    GatewayUnreachable,
    LoginRefused,
    LoginTimeout,
    PgtrunkError,
    ProtocolViolation,
    SessionLost,
    TrunkClosed,
    TrunkError,
    TrunkFull,
    UdpBlocked,
    UsageError,
)


@pytest.mark.parametrize(
    "kind",
    [
        AcquireTimeout, CertificateError, GatewayUnreachable, LoginRefused, LoginTimeout, TrunkClosed, TrunkFull,
        UdpBlocked,
    ],
)  # fmt: skip
def test_nothing_was_sent_to_whom_got_no_session(kind: type[PgtrunkError]) -> None:
    assert kind("words").retry_safe


@pytest.mark.parametrize("kind", [PgtrunkError, ProtocolViolation, SessionLost, TrunkError, UsageError])
def test_in_doubt_a_retry_is_not_safe(kind: type[PgtrunkError]) -> None:
    assert not kind("words").retry_safe


def test_a_lost_session_tells_whether_anything_was_sent() -> None:
    assert SessionLost("words").sent
    idle = SessionLost("words", sent=False, in_transaction=True)
    assert (idle.sent, idle.in_transaction, idle.retry_safe) == (False, True, True)


@pytest.mark.parametrize(
    "error",
    [
        SessionLost("words", sent=False, in_transaction=True),
        CertificateError("words", presented=["gw1"], expected="gw"),
        TrunkFull("words"),
    ],
)
def test_they_go_to_other_processes_whole(error: PgtrunkError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "words"
    assert copy.__dict__ == error.__dict__


def test_all_of_them_are_named() -> None:
    ours = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert ours == set(errors.__all__)
