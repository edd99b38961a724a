"""TCP to one address of a gateway, in the shape of a connection of a trunk: a line for each session, within a cap.

All carriers of a trunk share the `Cap`. A session's transport is there before its line is: until then
what it writes waits. A gateway that cannot be reached for one session is to be left by all that come: the carrier asks
for that, as a gateway does with GOAWAY, and so the dialer has another look at what can be reached. The session itself
is tried again until `connect_timeout`, or until there is a carrier that is not to be left: then it ends, and is opened
anew there. Nothing of it has been said to anybody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import random
from typing import TYPE_CHECKING, Final, TypeVar

from pgtrunk.backoff import Backoff
from pgtrunk.closing import close_each
from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost, TrunkError
from pgtrunk.quic.control import Goaway
from pgtrunk.tcp.opening import open_line
from pgtrunk.tcp.transport import TcpTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.tcp.cap import Cap
    from pgtrunk.tcp.line import Line
    from pgtrunk.tcp.opening import Place

__all__ = ["Departure", "TcpCarrier"]

P = TypeVar("P", bound=asyncio.BaseProtocol)

AT_ONCE: Final = 16
"""Handshakes of one carrier at a time: a pool that opens all its sessions would overflow the gateway's backlog."""

AGAIN: Final = Backoff(base=0.1, factor=2.0, ceiling=1.0)
"""Between a session's attempts to reach a gateway that refuses."""

SPARE: Final = 10.0
"""Seconds that the line is kept for the first session by which it was found out that there is TLS."""


@dataclass(frozen=True, slots=True)
class Departure(Goaway):
    """What a carrier says in the place of its gateway."""

    reason: str = ""


class TcpCarrier:
    """See `pgtrunk.connection.Connection`. It is never suspect: a line that is dead is found by the kernel."""

    def __init__(self, place: Place, cap: Cap, timeout: float, first: Line | None = None) -> None:
        self.on_open: Callable[[], None] | None = None
        self.on_credit: Callable[[], None] | None = None
        self.on_lost: Callable[[BaseException], None] | None = None
        self.on_leave: Callable[[Goaway], None] | None = None
        self.on_suspect: Callable[[bool], None] | None = None
        self.leave: Goaway | None = None
        self.is_kept = False
        self.is_suspect = False
        self.is_early = False
        self.is_alive = True
        self.own_limit = f"tcp_connections={cap.most}"
        """The setting that bounds its sessions, in the place of a gateway's MAX_STREAMS."""
        self.place = place
        self._cap = cap
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._turnstile = asyncio.Semaphore(AT_ONCE)
        self._sessions: dict[TcpTransport, asyncio.Task[None] | None] = {}
        """Each with the task that brings its line, until that is there."""
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._spare = first
        self._spare_timer = None if first is None else self._loop.call_later(SPARE, self._drop_spare)
        cap.carriers.append(self)

    def __repr__(self) -> str:
        return f"<TcpCarrier {self.place} {'alive' if self.is_alive else 'closed'} [{len(self._sessions)} sessions]>"

    @property
    def open_streams(self) -> int:
        return len(self._sessions)

    @property
    def stream_credit(self) -> int:
        """How many more sessions may be opened right now under ``tcp_connections``."""
        return self._cap.left if self.is_alive else 0

    def figures(self) -> None:
        """There are none: they are QUIC's."""
        return

    def open_stream(
        self, factory: Callable[[], P], *, on_closed: Callable[[BaseException | None], None] | None = None
    ) -> tuple[TcpTransport, P]:
        """Opens a session; ``on_closed`` is called once after its protocol's ``connection_lost``, with the same
        argument.

        Raises SessionLost where the carrier is closed.
        """
        if not self.is_alive:
            raise SessionLost(f"no session can be opened over TCP to {self.place}: it is closed", sent=False)
        protocol = factory()
        transport = TcpTransport(protocol)
        self._cap.take()
        self._sessions[transport] = None

        def closed(error: BaseException | None) -> None:
            self._closed(transport)
            if on_closed is not None:
                on_closed(error)

        transport.on_closed = closed
        try:
            protocol.connection_made(transport)
        except BaseException:
            transport.abort()
            raise
        spare = self._take_spare()
        if spare is not None:
            transport.attach(spare)
        else:
            task = self._loop.create_task(self._bring(transport), name=f"pgtrunk tcp {self.place}")
            self._sessions[transport] = task
            task.add_done_callback(lambda task: self._brought(transport, task))
        return transport, protocol

    def ask_to_leave(self, reason: str) -> None:
        """Has no new sessions come here, and those move that are idle."""
        if self.leave is None and self.is_alive:
            self.leave = Departure(reason=reason)
            if self.on_leave is not None:
                self.on_leave(self.leave)

    def twin(self) -> TcpCarrier:
        """Another one to the same place."""
        return TcpCarrier(self.place, self._cap, self._timeout)

    # -- lines

    async def _bring(self, transport: TcpTransport) -> None:
        deadline = self._loop.time() + self._timeout
        attempts = 0
        while True:
            try:
                async with asyncio.timeout_at(deadline), self._turnstile:
                    line = await open_line(self.place, deadline)
                break
            except (GatewayUnreachable, TimeoutError) as exc:
                attempts += 1
                pause = AGAIN.delay(attempts, random())
                if isinstance(exc, CertificateError) or self._loop.time() + pause >= deadline:
                    raise
                self._have_it_left(exc)
                if any(each.leave is None for each in self._cap.carriers):
                    raise
            await asyncio.sleep(pause)
        if transport.is_wanted:
            transport.attach(line)
        else:
            line.close()

    def _brought(self, transport: TcpTransport, task: asyncio.Task[None]) -> None:
        if transport in self._sessions:
            self._sessions[transport] = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, TrunkError):
            cause = error
            error = GatewayUnreachable(
                f"no connection over TCP to {self.place} within {self._timeout:g} s (connect_timeout)"
            )
            error.__cause__ = cause
        self._have_it_left(error)
        transport.refuse(error)

    def _have_it_left(self, error: BaseException) -> None:
        """Has all leave the place, by whatever carrier they are there."""
        for carrier in list(self._cap.carriers):
            if carrier.place.sockaddr == self.place.sockaddr:
                carrier.ask_to_leave(f"it cannot be reached over TCP any more: {error}")

    def _take_spare(self) -> Line | None:
        line, self._spare = self._spare, None
        if self._spare_timer is not None:
            self._spare_timer.cancel()
            self._spare_timer = None
        return line if line is not None and line.is_usable else None

    def _drop_spare(self) -> None:
        line = self._take_spare()
        if line is not None:
            line.close()

    # -- the end

    def _closed(self, transport: TcpTransport) -> None:
        task = self._sessions.pop(transport)
        if task is not None:
            task.cancel()
        self._cap.give_back()
        self._leave_if_done()

    def close(self) -> None:
        """Ends all sessions: what they have written leaves, as far as their lines take it."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._drop_spare()
        self._cap.carriers.remove(self)
        error = SessionLost(f"the trunk has closed its connections to {self.place}")
        close_each(partial(transport.cut, error) for transport in list(self._sessions))
        self._leave_if_done()

    def discard(self) -> None:
        """As `close`, of one that nobody has used."""
        self.close()

    def _leave_if_done(self) -> None:
        if not self.is_alive and not self._sessions and not self._gone.done():
            self._gone.set_result(None)

    async def wait_closed(self) -> None:
        """Waits until no session is left. Cancelled, it has no more patience with them."""
        try:
            await asyncio.shield(self._gone)
        except asyncio.CancelledError:
            close_each(transport.abort for transport in list(self._sessions))
            raise
