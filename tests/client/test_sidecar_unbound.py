"""What a driver without TLS is offered of a gateway that has it."""

from __future__ import annotations

import pytest

from pgtrunk.sidecar.unbound import Unbound
from pgtrunk.wire import backend
from pgtrunk.wire.framing import encode

BOTH = backend.authentication_sasl(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"])
ONE = backend.authentication_sasl(["SCRAM-SHA-256"])
REST = backend.authentication_ok() + backend.ready()


@pytest.mark.parametrize(
    ("told", "passed"),
    [
        (BOTH, ONE),
        (ONE, ONE),
        (BOTH + REST, ONE + REST),
        (encode(b"v", bytes(8)) + BOTH, encode(b"v", bytes(8)) + ONE),
        (REST, REST),
        (REST + BOTH, REST + BOTH),
        (backend.error("57P03", "no") + BOTH, backend.error("57P03", "no") + BOTH),
        (backend.authentication_sasl(["SCRAM-SHA-256-PLUS"]), backend.authentication_sasl(["SCRAM-SHA-256-PLUS"])),
        (b"R\0\0\0\4" + BOTH, b"R\0\0\0\4" + BOTH),
        (b"R\0\0\0\0" + BOTH, b"R\0\0\0\0" + BOTH),
        (b"R\xff\xff\xff\xff" + BOTH, b"R\xff\xff\xff\xff" + BOTH),
    ],
)
def test_what_is_offered(told: bytes, passed: bytes) -> None:
    at_once, slowly = Unbound(), Unbound()
    assert at_once.feed(told) == passed
    assert at_once.is_done
    assert b"".join(slowly.feed(bytes([octet])) for octet in told) == passed
    assert slowly.feed(b"") == b""


def test_what_is_not_complete_waits() -> None:
    unbound = Unbound()
    assert unbound.feed(BOTH[:-1]) == b""
    assert not unbound.is_done
    assert unbound.feed(BOTH[-1:] + b"x") == ONE + b"x"
