"""How a client begins: SSLRequest and GSSENCRequest, which may come first, then StartupMessage or CancelRequest.

TLS begins with SSLRequest, or at once, with the ClientHello of a client that has sslnegotiation=direct. In both cases
nothing counts that came in clear before it: who sits between the two could have put it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire.startup import PROTOCOL_3_2, CancelRequest, SSLRequest, StartupMessage, parse_startup
from pgtrunk_gateway.errors import LoginRefused
from pgtrunk_gateway.session.early import OPTION
from pgtrunk_gateway.tls import Door, HandshakeError, TlsTransport
from pgtrunk_gateway.tls.contexts import ALPN

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pgtrunk_gateway.relay.dialogue import Dialogue

__all__ = ["CLOSED_DOOR", "negotiate", "read_startup"]

CLOSED_DOOR: Final = Door()
"""No TLS: on unix sockets, as in Postgres, and in QUIC, which has its own."""

_HANDSHAKE: Final = b"\x16"
"""The first octet of TLS, and of no startup packet: it would be 369 MB long."""


async def read_startup(
    dialogue: Dialogue, door: Door, replace: Callable[[asyncio.Transport], None]
) -> StartupMessage | CancelRequest:
    """The first packet that is no request for encryption; ``replace`` is told of the transport that TLS makes.

    Raises :class:`ProtocolViolation` for what is no startup packet, :class:`LoginRefused` for a session without TLS
    where the door asks for it, and for a handshake that fails. Cancel requests may always come in clear: libpq before
    17 has no others.
    """
    data = b""
    asked: set[type] = set()
    encrypted = False
    while True:
        if data[:1] == _HANDSHAKE and door.context is not None and not encrypted:
            await _begin_tls(dialogue, door, replace, data)
            data, encrypted = b"", True
            if _alpn(dialogue) != ALPN:
                raise ProtocolViolation("direct TLS without ALPN, which must name postgresql")
        parsed = parse_startup(data)
        if parsed is None:
            data += await dialogue.read()
            continue
        packet, size = parsed
        data = data[size:]
        if isinstance(packet, StartupMessage | CancelRequest):
            if door.requires_tls and not encrypted and isinstance(packet, StartupMessage):
                raise LoginRefused("SSL required", detail=f"client_tls_sslmode = {door.mode}.")
            dialogue.unread(data)
            return packet
        if type(packet) in asked or encrypted:
            raise ProtocolViolation("encryption was asked for twice")
        asked.add(type(packet))
        if data or dialogue.has_unread:
            # As Postgres does (CVE-2021-23214), whatever the answer: nobody sends on without having read it.
            raise ProtocolViolation("received unencrypted data after a request for encryption")
        if isinstance(packet, SSLRequest) and door.context is not None:
            dialogue.write(b"S")
            await _begin_tls(dialogue, door, replace)
            encrypted = True
        else:
            dialogue.write(b"N")


async def _begin_tls(
    dialogue: Dialogue, door: Door, replace: Callable[[asyncio.Transport], None], received: bytes = b""
) -> None:
    """The handshake, of which ``received`` has come already. What follows it comes through the dialogue."""
    assert door.context is not None
    tls = TlsTransport(dialogue.transport, door.context, server_side=True)
    # Before the first wait: whatever ends the session from now on must not speak in clear.
    dialogue.transport = tls
    replace(tls)
    if dialogue.ended:
        raise ConnectionResetError("the client has left")
    try:
        await tls.handshake(received)
    except HandshakeError as error:
        raise LoginRefused("TLS handshake failed", sqlstate="08P01", log=f"TLS handshake error: {error}") from error
    dialogue.channel_binding = door.binding


def _alpn(dialogue: Dialogue) -> str | None:
    chosen: str | None = dialogue.transport.get_extra_info("ssl_object").selected_alpn_protocol()
    return chosen


def negotiate(packet: StartupMessage) -> tuple[int, bytes]:
    """The version that the session speaks, and what its client is told of it: nothing, where it has what it asked for.

    As Postgres does (NegotiateProtocolVersion, from 9.3 on): whoever asks for a minor version that is not known yet is
    told the newest one that is, and whoever sends protocol options which of them have no effect: here, all but ours.
    The client then goes on, or leaves. 3.1 has never been anything but a name; it is spoken as 3.0 is.
    """
    protocol = min(packet.protocol, PROTOCOL_3_2)
    unknown = [option for option in packet.options if option != OPTION]
    if protocol == packet.protocol and not unknown:
        return protocol, b""
    return protocol, server.negotiate_protocol(protocol, unknown)
