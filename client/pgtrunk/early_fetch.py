"""One query in a session of its own, all of it in the session's first flight.

    StartupMessage, Parse, Bind, Describe, Execute, Sync  ->  welcome, rows

That is possible where the login asks for nothing. On a connection that is being resumed the flight is early data, and
the rows come after one round trip. The option ``_pq_.early_data`` in the StartupMessage says that the query only reads;
a gateway that does not know it, or is not to take queries early, runs it when the handshake is complete.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import asyncpg

from pgtrunk.connection import AGAIN
from pgtrunk.errors import LoginRefused, LoginTimeout, ProtocolViolation, SessionLost
from pgtrunk.refusal import seconds
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import HEADER_SIZE, messages
from pgtrunk.wire.startup import StartupMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pgtrunk.trunk import Opened

__all__ = ["EarlyFetch", "Row", "fetch_early"]

OPTION: Final = "_pq_.early_data"
READ_ONLY: Final = "read-only"

Row: TypeAlias = "tuple[str | None, ...]"


class EarlyFetch(asyncio.Protocol):
    """The session."""

    def __init__(self, flight: bytes) -> None:
        self._done: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()
        self.is_in_vain = False
        """It was lost before the gateway can have acted on it."""
        self._transport: asyncio.Transport
        self._flight = flight
        self._heard = b""
        self._rows: list[Row] = []
        self._is_in = False
        self._error: Exception | None = None

    async def rows(self) -> list[Row]:
        """The rows, when all are there. Raises what has come of it instead; cancelled, it ends the session."""
        try:
            return await self._done
        finally:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._flight)

    def data_received(self, data: bytes) -> None:
        heard, end = self._heard + data, 0
        try:
            for kind, start, end in messages(heard):
                self._take(kind, heard[start + HEADER_SIZE : end])
        except ProtocolViolation as exc:
            self._end(exc)
        self._heard = heard[end:]

    def _take(self, kind: int, body: bytes) -> None:
        if self._done.done():
            return
        if kind == backend.AUTHENTICATION and backend.parse_authentication(body).code:
            self._end(
                LoginRefused(
                    "the gateway asks for a password: fetch_early is for logins that prove nothing, by the gateway's "
                    "auth_type = trust or cert; use connect"
                )
            )
        elif kind == backend.ERROR:
            self._fail(backend.parse_error(body))
        elif kind == backend.DATA_ROW:
            values = backend.parse_data_row(body)
            self._rows.append(tuple(map(_text, values)))
        elif kind == backend.READY and not self._is_in:
            self._is_in = True
        elif kind == backend.READY:
            self._end(self._error)

    def _fail(self, fields: backend.ErrorFields) -> None:
        if self._is_in and fields.severity == "ERROR":
            given = {"S": fields.severity, "C": fields.sqlstate, "M": fields.message}
            given |= {"D": fields.detail} if fields.detail else {}
            given |= {"H": fields.hint} if fields.hint else {}
            self._error = asyncpg.PostgresError.new(given)
            return
        refused = LoginRefused(fields.message) if not self._is_in else SessionLost(fields.message)
        refused.sqlstate = fields.sqlstate
        self._end(refused)

    def _end(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(self._rows)
        else:
            self._done.set_exception(error)
        self._transport.write(frontend.TERMINATE_MESSAGE)
        self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self._done.done():
            self.is_in_vain = bool(self._transport.get_extra_info("early"))
            lost = exc if isinstance(exc, SessionLost) else SessionLost("the gateway ended the session")
            self._done.set_exception(lost)


def _text(value: bytes | None) -> str | None:
    # A database in SQL_ASCII may have anything.
    return None if value is None else value.decode("utf-8", "surrogateescape")


async def fetch_early(
    open_stream: Callable[[Callable[[], EarlyFetch]], Awaitable[Opened[EarlyFetch]]],
    query: str,
    arguments: Sequence[str | None],
    *,
    user: str,
    database: str,
    timeout: float,
) -> list[Row]:
    """See `StreamManager.fetch_early`."""
    flight = _flight(query, arguments, {"user": user, "database": database, "client_encoding": "UTF8"})
    clock = asyncio.timeout(timeout)
    try:
        async with clock:
            for left in reversed(range(AGAIN + 1)):
                session = (await open_stream(lambda: EarlyFetch(flight))).protocol
                try:
                    return await session.rows()
                except SessionLost:
                    if not (session.is_in_vain and left):
                        raise
                # Once more; to a gateway that has just failed so, a connection is opened in full.
            raise AssertionError
    except TimeoutError as exc:
        if not clock.expired():
            raise
        raise LoginTimeout(f"the rows were not there within timeout={seconds(timeout)}") from exc


def _flight(query: str, arguments: Sequence[str | None], parameters: dict[str, str]) -> bytes:
    values = [None if value is None else value.encode() for value in arguments]
    return b"".join(
        (
            StartupMessage(parameters=parameters, options={OPTION: READ_ONLY}).encode(),
            frontend.parse(b"", query.encode()),
            frontend.bind(b"", b"", values),
            frontend.describe_portal(b""),
            frontend.execute(),
            frontend.SYNC_MESSAGE,
        )
    )
