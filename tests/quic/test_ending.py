"""What people read when a connection has ended."""

from __future__ import annotations

import pytest
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.tls import AlertDescription

from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost, TrunkError
from pgtrunk.quic.config import QuicLimits
from pgtrunk.quic.ending import explain, show

PEER = ("192.0.2.2", 6432)
PADDING = QuicFrameType.PADDING


def alert(description: AlertDescription) -> int:
    return QuicErrorCode.CRYPTO_ERROR + description


@pytest.mark.parametrize(
    ("code", "frame", "reason", "by_peer", "is_ready", "kind", "words"),
    [
        (0, None, "", True, True, SessionLost, "the other end closed it"),
        (0, None, "shutting down", True, True, SessionLost, "the other end closed it: shutting down"),
        (7, None, "", True, True, SessionLost, "the other end closed it with code 7"),
        (1, PADDING, "Idle timeout", False, True, SessionLost, "was heard from the other end for 10 s (idle_timeout)"),
        (0x0A, 8, "bad", False, True, SessionLost, "this end closed it with PROTOCOL_VIOLATION: bad"),
        (0x7777, 8, "", True, True, SessionLost, "the other end closed it with error 0x7777"),
        (1, PADDING, "Idle timeout", False, False, GatewayUnreachable, "no QUIC connection with 192.0.2.2:6432: n"),
        (2, PADDING, "", True, False, GatewayUnreachable, "closed it with CONNECTION_REFUSED"),
        (alert(AlertDescription.bad_certificate), 6, "it names nobody", False, False, CertificateError,
         "refused the certificate of 192.0.2.2:6432: it names nobody"),
        (alert(AlertDescription.certificate_required), 6, "", True, False, CertificateError,
         "our certificate was refused by 192.0.2.2:6432: the other end closed it with TLS alert certificate_required"),
        (alert(AlertDescription.unknown_ca), 6, "", True, True, CertificateError, "our certificate was refused by"),
        (alert(AlertDescription.no_application_protocol), 6, "", True, False, GatewayUnreachable,
         "with TLS alert no_application_protocol"),
    ],
)  # fmt: skip
def test_words(
    code: int, frame: int | None, reason: str, by_peer: bool, is_ready: bool, kind: type[TrunkError], words: str
) -> None:
    event = ConnectionTerminated(error_code=code, frame_type=frame, reason_phrase=reason)
    error = explain(event, QuicLimits(), PEER, by_peer=by_peer, is_ready=is_ready)
    assert type(error) is kind
    assert words in str(error)


def test_addresses_are_written_as_people_write_them() -> None:
    assert show(("::1", 6432, 0, 0)) == "[::1]:6432"
    assert show(("192.0.2.1", 1)) == "192.0.2.1:1"
    assert show(None) == "None"
