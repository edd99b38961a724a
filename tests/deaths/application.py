"""An application over QUIC that is brought into a state, in the tests' loop or in a process of its own.

It speaks the protocol itself, so that what it is told can be told exactly: `python -m deaths.application` with the
arguments of `main` says "there" when it has done its part, and after a line on stdin what it was told. It imports
nothing of the tests, or a start would take several times as long.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

from pgtrunk import StreamManager, retry_safe
from pgtrunk.errors import PgtrunkError
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import MessageReader
from pgtrunk.wire.startup import CancelRequest, StartupMessage

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BATCH", "COPY", "SLEEP", "UPDATE", "Application", "Stream"]

UPDATE: Final = "UPDATE deaths SET n = n + 1"
SLEEP: Final = UPDATE + "; SELECT pg_sleep(600)"
COPY: Final = "COPY deaths FROM STDIN"
BATCH: Final = "INSERT INTO deaths VALUES (99)"
_SELECT: Final = frontend.query(b"SELECT 1")
_PATIENCE: Final = 30.0
_AGAIN: Final = 3
_LIMIT: Final = 1 << 20


class Stream(asyncio.Protocol):
    """What came on a stream, as messages, and how it ended."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.lost = False
        self.loss: BaseException | None = None
        self.transport: Any = None
        self._reader = MessageReader(_LIMIT)
        self._came = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (message := self._reader.next()) is not None:
            self.messages.append((chr(message[0]), message[1]))
        self._came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.loss = True, exc
        self._came.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until it holds, or until the stream is lost."""
        async with asyncio.timeout(_PATIENCE):
            while not condition() and not self.lost:
                self._came.clear()
                await self._came.wait()

    def count(self, kind: str) -> int:
        return sum(each == kind for each, _ in self.messages)

    @property
    def sqlstate(self) -> str | None:
        """Of the error that came last."""
        errors = [backend.parse_error(body).sqlstate for kind, body in self.messages if kind == "E"]
        return errors[-1] if errors else None


class Application:
    """One session over a trunk."""

    def __init__(self, port: int, ca_file: str, login: dict[str, str]) -> None:
        self.trunk = StreamManager(f"127.0.0.1:{port}", ca_file=ca_file, connections=1)
        self.login = login
        self.stream: Stream
        self._rest = b""

    async def enter(self, state: str) -> None:
        """Does the client's part of it; what others do, such as to let a query wait, is not waited for."""
        await self.trunk.open()
        await self._open(state)
        await self._do(state)

    async def _open(self, state: str) -> None:
        for _ in range(_AGAIN):
            _, self.stream = await self.trunk.open_stream(Stream)
            was_early = self.stream.transport.get_extra_info("early")
            await self._log_in(state)
            # A trunk that comes back does not wait for an answer; where none comes, nothing of what was said has had an
            # effect, and the session is opened anew, as `StreamManager.connect` does it.
            loss = self.stream.loss
            if not (was_early and loss is not None and retry_safe(loss)):
                break
        if state not in ("login", "half a login"):
            self._check_ready()

    async def _log_in(self, state: str) -> None:
        startup = StartupMessage(parameters=self.login).encode()
        if state == "half a login":
            startup, self._rest = startup[:10], startup[10:]
        self.stream.transport.write(startup)
        if state not in ("login", "half a login"):
            await self.stream.until(lambda: self.stream.count("Z"))

    async def _do(self, state: str) -> None:
        send = self.stream.transport.write
        if state == "idle":
            await self._query("SELECT 1")
        elif state == "waiting":
            send(_SELECT)
        elif state in ("running", "cancel"):
            send(frontend.query(SLEEP.encode()))
        elif state == "transaction":
            await self._query("BEGIN")
            await self._query(UPDATE)
        elif state == "copy":
            send(frontend.query(COPY.encode()))
            await self.stream.until(lambda: self.stream.count("G"))
            send(frontend.copy_data(b"1000\n" * 1000))
        elif state == "pipeline":
            send(frontend.parse(b"", BATCH.encode()) + frontend.bind(b"", b"") + frontend.execute())

    async def cancel(self) -> None:
        """Sends a CancelRequest for what runs; that it is acted on is not waited for."""
        key = next(backend.parse_backend_key_data(body) for kind, body in self.stream.messages if kind == "K")
        _, other = await self.trunk.open_stream(Stream)
        other.transport.write(CancelRequest(key.pid, key.secret).encode())

    async def _query(self, text: str) -> None:
        self.stream.transport.write(frontend.query(text.encode()))
        await self._ready()

    async def _ready(self) -> None:
        await self.stream.until(lambda: self.stream.count("Z"))
        self._check_ready()

    def _check_ready(self) -> None:
        assert self.stream.count("Z") and not self.stream.count("E"), (self.stream.messages, self.stream.loss)
        self.stream.messages = [each for each in self.stream.messages if each[0] == "K"]

    async def told(self, state: str) -> str:
        """What came of it: see the matrix. One that has nothing under way asks something; Sync is never sent, since a
        gateway that stalls would find it later, and commit."""
        stream = self.stream
        answers = 1
        if not stream.lost:
            if state == "half a login":
                stream.transport.write(self._rest + _SELECT)
                answers = 2
            elif state in ("idle", "transaction"):
                stream.transport.write(_SELECT)
        await stream.until(lambda: stream.count("Z") >= answers)
        if stream.sqlstate is not None:
            return stream.sqlstate
        if stream.lost:
            return stream.loss.sqlstate if isinstance(stream.loss, PgtrunkError) else "cut"
        return "answer"

    async def ask_again(self) -> str:
        """What a new session over the same trunk is told; the trunk dials again if it has to."""
        await self._open("idle")
        return await self.told("idle")

    async def close(self) -> None:
        await self.trunk.close()


async def main(port: str, ca_file: str, state: str, user: str, database: str) -> None:
    application = Application(int(port), ca_file, {"user": user, "database": database})
    await application.enter(state)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.write("there\n")
    sys.stdout.flush()
    while order := (await reader.readline()).decode().strip():
        if order == "cancel":
            await application.cancel()
        else:
            sys.stdout.write(f"{await application.told(state)}\n")
            sys.stdout.flush()
    await application.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
