"""Takes SCRAM-SHA-256-PLUS out of what a gateway offers. Bytes in, bytes out.

Over TCP the trunk's TLS ends here, so a gateway offers channel binding, to which the driver has no channel: it has none
of TLS, and libpq takes such an offer for an attack. Streams over QUIC are offered none.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from pgtrunk.wire import backend

__all__ = ["Unbound"]

_HEADER: Final = Struct("!cI")
_CODE: Final = Struct("!I")
_SASL: Final = 10
_PLUS: Final = "SCRAM-SHA-256-PLUS"

_LONGEST: Final = 4096
"""Octets of an offer. What is longer is none."""

_BEFORE: Final = (b"v", b"N")
"""What may come first: NegotiateProtocolVersion, notices."""


class Unbound:
    """For the first words of one session's gateway, up to its first request for a login."""

    def __init__(self) -> None:
        self.is_done = False
        """Whether nothing more is to be looked at."""
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Returns what the driver gets of it, and of what was held back before."""
        self._held += data
        passed = b""
        while not self.is_done and len(self._held) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._held)
            if not 4 <= length <= _LONGEST:
                self.is_done = True
            elif len(self._held) <= length:
                break
            else:
                message, self._held = self._held[: length + 1], self._held[length + 1 :]
                self.is_done = kind not in _BEFORE
                passed += _without_binding(message) if kind == b"R" else message
        if self.is_done:
            passed, self._held = passed + self._held, b""
        return passed


def _without_binding(message: bytes) -> bytes:
    body = message[_HEADER.size :]
    if len(body) < _CODE.size or _CODE.unpack_from(body)[0] != _SASL:
        return message
    offered = backend.parse_sasl_mechanisms(body[_CODE.size :])
    left = [mechanism for mechanism in offered if mechanism != _PLUS]
    # With nothing left the driver is better told what there was.
    return backend.authentication_sasl(left) if left and left != offered else message
