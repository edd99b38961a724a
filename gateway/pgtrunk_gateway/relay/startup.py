"""How a client begins: SSLRequest and GSSENCRequest, which may come first, then StartupMessage or CancelRequest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire.startup import CancelRequest, StartupMessage, parse_startup

if TYPE_CHECKING:
    from pgtrunk_gateway.relay.dialogue import Dialogue

__all__ = ["read_startup"]


async def read_startup(dialogue: Dialogue) -> StartupMessage | CancelRequest:
    """The first packet that is no request for encryption. Raises :class:`ProtocolViolation`."""
    data = b""
    asked: set[type] = set()
    while True:
        parsed = parse_startup(data)
        if parsed is None:
            data += await dialogue.read()
            continue
        packet, size = parsed
        data = data[size:]
        if isinstance(packet, StartupMessage | CancelRequest):
            dialogue.unread(data)
            return packet
        if type(packet) in asked:
            raise ProtocolViolation("encryption was asked for twice")
        asked.add(type(packet))
        dialogue.write(b"N")
