"""TLS on a connection to Postgres: SSLRequest, the answer, the handshake. Every wait has the caller's deadline.

In which order TLS and clear text are tried is libpq's: ``allow`` in clear first, ``prefer`` in TLS first, and the other
way where the server turns the first down; ``require`` and above in TLS alone. That a server has said 'N' is not
remembered. It would save ``prefer`` one round trip of the five or so that a connection takes, which are waited for by
nobody but the first session; and a server that has just got TLS would be spoken to in clear for that while.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.startup import SSLRequest
from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.tls import HandshakeError, TlsTransport, end_point

if TYPE_CHECKING:
    import asyncio
    import ssl

    from pgtrunk_gateway.inbox import Inbox
    from pgtrunk_gateway.pool.target import Target

__all__ = ["NoTls", "Way", "ask_and_begin", "channel_binding", "encrypt", "ways"]


class Way(enum.Enum):
    """What one attempt to connect does about TLS."""

    CLEAR = "in clear"
    OFFERED = "in TLS where the server has it"
    TLS = "in TLS"


_WAYS: Final = {"disable": (Way.CLEAR,), "allow": (Way.CLEAR, Way.TLS), "prefer": (Way.OFFERED, Way.CLEAR)}


class NoTls(BackendUnavailable):
    """The server has no TLS, or the handshake with it has failed. It may still be spoken to in clear, if one likes."""


def ways(target: Target) -> tuple[Way, ...]:
    """How to connect, and how if that is turned down. A unix socket has no TLS, as in Postgres."""
    if target.tls is None or target.unix_path is not None:
        return (Way.CLEAR,)
    return _WAYS.get(target.tls.mode, (Way.TLS,))


async def encrypt(target: Target, transport: asyncio.Transport, inbox: Inbox, way: Way) -> asyncio.Transport:
    """Begins TLS where ``way`` says so -> the transport to go on with.

    Raises :class:`NoTls`, :class:`BackendUnavailable` for a server that breaks the protocol, and OSError for a lost
    connection.
    """
    if way is Way.CLEAR:
        return transport
    assert target.tls is not None
    if await _is_offered(target, transport, inbox):
        return await _begin(target, transport, target.tls.context)
    if way is Way.TLS:
        raise NoTls(
            f"server refused SSL: {target} has no TLS",
            detail=f"server_tls_sslmode = {target.tls.mode}.",
            log="server refused SSL",
        )
    return transport


async def _is_offered(target: Target, transport: asyncio.Transport, inbox: Inbox) -> bool:
    transport.write(SSLRequest().encode())
    answer = await inbox.read()
    if answer[:1] not in (b"S", b"N"):
        # An error of the server's, before TLS: anybody could have said it.
        raise NoTls(f"bad sslreq answer from the server at {target}", log="bad sslreq answer")
    if len(answer) > 1:
        # Who sits between could have put it there, to be taken for something said in TLS (CVE-2021-23222).
        raise BackendUnavailable(
            f"the server at {target} has sent something in clear behind its answer to SSLRequest",
            log="received unencrypted data after SSL response",
        )
    return answer == b"S"


async def _begin(target: Target, transport: asyncio.Transport, context: ssl.SSLContext) -> TlsTransport:
    """The handshake, with the server's name in it: as SNI, unless it is an address (RFC 6066, section 3)."""
    try:
        tls = TlsTransport(transport, context, server_side=False, server_hostname=target.host.rstrip("."))
        await tls.handshake()
    except (HandshakeError, ValueError) as error:
        raise NoTls(
            f"TLS handshake with the server at {target} failed: {error}", log=f"TLS handshake error: {error}"
        ) from error
    return tls


async def ask_and_begin(
    target: Target, transport: asyncio.Transport, inbox: Inbox, context: ssl.SSLContext
) -> TlsTransport:
    """TLS and nothing else, with the context of a connection that is encrypted already."""
    if not await _is_offered(target, transport, inbox):
        raise NoTls(f"server refused SSL: {target} has no TLS any more", log="server refused SSL")
    return await _begin(target, transport, context)


def channel_binding(transport: asyncio.Transport) -> bytes | None:
    """The tls-server-end-point of the server's certificate, whether it was verified or not; None without TLS."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    return end_point(certificate) if certificate is not None else None
