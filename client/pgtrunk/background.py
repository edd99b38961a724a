"""`BackgroundTrunk`: a trunk for programs without an event loop, behind a local socket of their own.

A thread runs a `StreamManager` and a `Sidecar`; the program's threads talk to it with any driver, as to a Postgres.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from pgtrunk.errors import TrunkClosed, TrunkError, UsageError
from pgtrunk.manager import StreamManager
from pgtrunk.sidecar import Sidecar, TcpEndpoint, UnixEndpoint
from pgtrunk.sidecar.loops import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgtrunk.sidecar import Endpoint
    from pgtrunk.telemetry import TrunkStats

__all__ = ["BackgroundTrunk"]

logger = logging.getLogger("pgtrunk.sidecar")

OPEN_TIMEOUT = 10.0
"""Seconds that the thread may take to listen. It connects to nothing for that."""

CLOSE_TIMEOUT = 6.0
"""Seconds that closing waits at most: what sidecar and manager take at most, and some more."""


class BackgroundTrunk:
    """A trunk to a gateway, or to several, and a local socket that drivers connect to: psycopg, psycopg2, pg8000 and so
    on.

    The arguments are those of `StreamManager`. ``with`` opens and closes it, or `open` and `close` do; without them it
    is closed when the program ends. `host` and `port` say where it listens: the folder of a unix socket that nobody
    else can reach, or 127.0.0.1 where there are no unix sockets.

    It belongs to the process that opened it, so a server that forks workers opens one in each: `UsageError` otherwise.
    All of its methods may be called from any thread.
    """

    def __init__(self, gateway: str | Sequence[str], **settings: Any) -> None:
        self._manager = StreamManager(gateway, **settings)
        self._gateway = self._manager.gateway
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._folder: str | None = None
        self._endpoint: Endpoint | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def open(self) -> None:
        """Listens, and connects to nothing yet; a second call does nothing.

        Raises `CertificateFileError` for files that cannot be read or do not fit together, `TrunkClosed` after `close`.
        """
        self._check_process()
        with self._lock:
            self._pid = os.getpid()
            if self._is_closed:
                raise TrunkClosed(f"the trunk to {self._gateway} is closed")
            if self._thread is not None:
                return
            atexit.register(self.close)
            try:
                self._start()
            except BaseException:
                self._discard()
                raise

    def close(self) -> None:
        """Ends all sessions, which are told so (57P01), within a few seconds; a second call does nothing.

        In a process that was forked off it does nothing either: the trunk is the parent's.
        """
        if self._pid not in (None, os.getpid()):
            return
        with self._lock:
            self._is_closed = True
            if self._thread is not None:
                self._discard()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def host(self) -> str:
        """What drivers take as the host: a folder, or an address."""
        endpoint = self._open_endpoint()
        return endpoint.directory if isinstance(endpoint, UnixEndpoint) else endpoint.host

    @property
    def port(self) -> int:
        return self._open_endpoint().port

    def dsn(
        self, *, user: str | None = None, password: str | None = None, database: str | None = None, **options: str
    ) -> str:
        """Returns the address as libpq's URI; ``options`` are further parameters of it, such as ``connect_timeout``.

        psycopg and asyncpg take it as it is; SQLAlchemy wants another scheme before the ``://``.
        """
        login = "" if user is None else quote(user, safe="")
        if password is not None:
            login += f":{quote(password, safe='')}"
        query = urlencode({"host": self.host, "port": self.port, **options}, quote_via=quote)
        return f"postgresql://{login and login + '@'}/{quote(database or '', safe='')}?{query}"

    @property
    def gateway(self) -> str:
        """The gateway, as it was given."""
        return self._gateway

    def stats(self) -> TrunkStats:
        """Returns what the trunk is doing and what it has done."""
        self._open_endpoint()
        # Not by way of the thread, which may be ending.
        return self._manager.stats()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "not open" if self._endpoint is None else f"at {self._endpoint}"
        return f"<BackgroundTrunk {self._gateway} {state}>"

    # In the program's threads.

    def _check_process(self) -> None:
        if self._pid not in (None, os.getpid()):
            raise UsageError(
                f"the trunk to {self._gateway} belongs to process {self._pid}, and this is {os.getpid()}: neither its "
                "thread nor its QUIC connections survive a fork, so make a BackgroundTrunk in each process, after the "
                "fork"
            )

    def _open_endpoint(self) -> Endpoint:
        self._check_process()
        endpoint = self._endpoint
        if endpoint is None:
            state = "closed" if self._is_closed else "not open: use `with BackgroundTrunk(...)`, or `open()`"
            raise TrunkClosed(f"the trunk to {self._gateway} is {state}")
        return endpoint

    def _start(self) -> None:
        endpoint: Endpoint = TcpEndpoint("127.0.0.1", 0)
        if hasattr(socket, "AF_UNIX"):
            self._folder = tempfile.mkdtemp(prefix="pgtrunk-")  # mode 0700
            endpoint = UnixEndpoint(self._folder)
        ready: Future[Endpoint] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(endpoint, ready), name=f"pgtrunk {self._gateway}", daemon=True
        )
        self._thread.start()
        try:
            self._endpoint = ready.result(OPEN_TIMEOUT)
        except FutureTimeout:
            raise TrunkError(
                f"the thread of the trunk to {self._gateway} did not listen within {OPEN_TIMEOUT:g} s, though it needs "
                "no network for that: the machine has no time for it"
            ) from None

    def _discard(self) -> None:
        thread, self._thread, self._endpoint = self._thread, None, None
        if thread is not None and thread.is_alive():
            # It may not have come so far, or may just have ended.
            with contextlib.suppress(AttributeError, RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(CLOSE_TIMEOUT)
            if thread.is_alive():
                logger.warning("the trunk to %s did not end within %g s", self._gateway, CLOSE_TIMEOUT)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    # In the thread.

    def _run(self, endpoint: Endpoint, ready: Future[Endpoint]) -> None:
        try:
            run(self._serve(endpoint, ready))
        except BaseException as exc:
            # It is the caller of `open` who is to hear of it.
            if ready.done():
                raise
            ready.set_exception(exc)

    async def _serve(self, endpoint: Endpoint, ready: Future[Endpoint]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._thread is None:
            return  # it was given up before it had begun
        async with self._manager as manager, Sidecar(manager, [endpoint]) as sidecar:
            ready.set_result(sidecar.endpoints[0])
            await self._stop.wait()
