"""What the sidecar knows of the bytes that it carries: how a driver begins, where the gateway's messages end. Pure.

A driver's first packet says whether it wants a session or a cancel, and requests for encryption before it are answered
here, which saves a round trip each: the way to the gateway is encrypted anyway. Of what the gateway says, only headers
are looked at: an error of our own may stand between two messages, never inside one, where it would pass for data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.wire.backend import BACKEND_KEY_DATA, COPY_BOTH, COPY_IN, READY, parse_backend_key_data
from pgtrunk.wire.framing import HEAD, HEADER_SIZE
from pgtrunk.wire.startup import CancelRequest, GSSENCRequest, SSLRequest, StartupMessage, parse_startup

if TYPE_CHECKING:
    from pgtrunk.sidecar.owed import Owed
    from pgtrunk.wire.backend import BackendKeyData
    from pgtrunk.wire.startup import StartupPacket

__all__ = ["Answers", "Greeting"]

_KEY_LENGTHS = range(12, 265)
"""What the length of a BackendKeyData may be: itself, the pid, and a secret of 4 to 256 octets."""

_TOLD = {READY: 5, BACKEND_KEY_DATA: 264, COPY_IN: 0, COPY_BOTH: 0}
"""What more is known of than its length; up to which length it is waited for as a whole."""


class Greeting:
    """Collects what a driver says until it has said what it wants.

    ``packet`` is None until then; afterwards ``data`` holds it, and whatever came behind it, as the bytes to forward.
    """

    __slots__ = ("data", "packet")

    def __init__(self) -> None:
        self.data = b""
        self.packet: StartupMessage | CancelRequest | None = None

    def feed(self, data: bytes) -> bytes:
        """Adds what arrived and returns the answer to it, mostly empty. Raises `ProtocolViolation`."""
        self.data += data
        answer = b""
        while self.packet is None and (parsed := parse_startup(self.data)) is not None:
            packet, length = parsed
            answer += self._take(packet, length)
        return answer

    def _take(self, packet: StartupPacket, length: int) -> bytes:
        if isinstance(packet, (SSLRequest, GSSENCRequest)):
            self.data = self.data[length:]
            return b"N"
        self.packet = packet
        return b""


class Answers:
    """Hops over the headers of what the gateway says on one stream.

    ``key`` is its BackendKeyData, by which a cancel will name the session; None before that. ``owed`` is told of each
    ReadyForQuery, and of what begins a COPY.
    """

    __slots__ = ("_carry", "_is_broken", "_owed", "_skip", "key")

    def __init__(self, owed: Owed) -> None:
        self.key: BackendKeyData | None = None
        self._owed = owed
        self._skip = 0  # octets that are left of the message in which the last chunk ended
        self._carry = b""  # the beginning of a header, or of the key, that is not complete yet
        self._is_broken = False

    @property
    def is_between_messages(self) -> bool:
        """Whether the driver has got whole messages only."""
        return not (self._skip or self._carry or self._is_broken)

    def feed(self, data: bytes) -> None:
        """Looks at the next bytes. On the hot path, and plain for it."""
        at = self._skip
        if self._carry:
            data, self._carry = self._carry + data, b""
        size = len(data)
        while at + HEADER_SIZE <= size:
            kind, length = HEAD(data, at)
            if length < 4:
                # No Postgres: from here on nobody knows where a message ends.
                self._is_broken = True
                return
            if kind in _TOLD:
                if length <= _TOLD[kind] and at + length + 1 > size:
                    break
                self._tell(kind, data[at + HEADER_SIZE : at + length + 1])
            at += length + 1
        if at < size:
            self._skip, self._carry = 0, data[at:]
        else:
            self._skip = at - size

    def _tell(self, kind: int, body: bytes) -> None:
        if kind == READY:
            self._owed.ready(body[0] if body else 0)
        elif kind != BACKEND_KEY_DATA:
            self._owed.copies()
        elif self.key is None and len(body) + 4 in _KEY_LENGTHS:
            self.key = parse_backend_key_data(body)

    def __repr__(self) -> str:
        pid = None if self.key is None else self.key.pid
        return f"<Answers pid={pid} {'between messages' if self.is_between_messages else 'inside a message'}>"
