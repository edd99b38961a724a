"""One request of HTTP/1.1: GET, and the body of a 200. h11 has the grammar, asyncio the connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    import h11

__all__ = ["HttpError", "get"]

_LONGEST: Final = 1 << 20
"""Octets of an answer."""
_CHUNK: Final = 1 << 16
_OK: Final = 200


class HttpError(Exception):
    """There is an answer, and it is none that could be read."""


async def get(url: str, *, tls: Callable[[], ssl.SSLContext]) -> bytes:
    """What is at ``url``. ``tls``: the context for https.

    Raises :class:`HttpError` and OSError, and ModuleNotFoundError without h11 (pgtrunk-gateway needs it). The caller
    sets the deadline.
    """
    # Not above: most gateways never ask anybody.
    import h11

    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls() if is_secure else None)
    try:
        connection = h11.Connection(h11.CLIENT)
        headers = [("Host", parts.netloc), ("Accept", "application/json"), ("Connection", "close")]
        request = h11.Request(method="GET", target=parts.path or "/", headers=headers)
        for event in (request, h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        return await _body(connection, reader)
    except h11.RemoteProtocolError as error:
        raise HttpError(f"no HTTP: {error}") from error
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _body(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    import h11

    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response) and event.status_code != _OK:
            raise HttpError(f"HTTP status {event.status_code}")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _LONGEST:
                raise HttpError(f"an answer of more than {_LONGEST} octets")
        elif isinstance(event, h11.EndOfMessage):
            return body
        elif isinstance(event, h11.ConnectionClosed):
            raise HttpError("no answer")
