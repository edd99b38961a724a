"""The first login message goes along with the StartupMessage, where it is known what the gateway is going to ask for.

A login by SCRAM waits a round trip only to hear that it is one. So what the gateway said first is remembered
(:mod:`pgtrunk.login_memory`) and told the driver at once, the next time. What the driver answers, SASLInitialResponse,
holds a random number and proves nothing; it leaves in the same flight as the StartupMessage, as early data too (0-RTT).
When the gateway says what it was expected to say, that is dropped, and the driver has its stream to itself.

    expected     said first         what becomes of it
    nothing      anything           passed on
    an offer     the same offer     dropped; a round trip is saved
                 ErrorResponse      passed on: it is about the StartupMessage
                 anything else      the stream is given up; the driver is told that the session is lost, and whoever
                                    wanted it opens another without expectations. Nothing has taken effect.

The same goes for a stream that is lost before the handshake of its connection was complete: what a gateway has heard
until then it has not acted on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from pgtrunk.errors import SessionLost
from pgtrunk.wire.backend import ERROR
from pgtrunk.wire.framing import HEAD, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pgtrunk.login_memory import LoginMemory

__all__ = ["Anticipation"]

LONGEST = 64 << 10
"""Octets of a first message; what is longer is passed on as it comes."""


class Anticipation(asyncio.Protocol):
    """Stands before ``protocol``, a driver's, until the gateway has said its first word.

    ``on_saved`` is called where that was expected. Without a ``memory`` nothing is. ``hand_to`` may put another in the
    driver's place.
    """

    def __init__(
        self,
        protocol: Any,
        memory: LoginMemory | None = None,
        who: Hashable = None,
        on_saved: Callable[[], None] | None = None,
    ) -> None:
        self.protocol = protocol
        self.is_in_vain = False
        """The session ended, and nothing that was said has had an effect: another may be opened in its place."""
        self._memory = memory
        self._who = who
        self._expected = b"" if memory is None else memory.expected(who)
        self._on_saved = on_saved
        self._transport: asyncio.Transport
        self._heard = b""
        self._is_over = False

    def hand_to(self, protocol: Any) -> None:
        """``protocol`` speaks from now on for the driver's."""
        self.protocol = protocol
        if self._is_over:
            self._transport.set_protocol(protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.protocol.connection_made(transport)
        if self._expected:
            # In the same turn of the loop, so that the answer shares the packet of the StartupMessage.
            self.protocol.data_received(self._expected)

    def data_received(self, data: bytes) -> None:
        self._heard = heard = self._heard + data
        if len(heard) < HEADER_SIZE:
            return
        kind, length = HEAD(heard, 0)
        end = length + 1
        if not HEADER_SIZE <= end <= LONGEST:
            self._pass_on(heard)
        elif len(heard) >= end:
            self._begins(kind, heard[:end], heard[end:])

    def _begins(self, kind: int, first: bytes, rest: bytes) -> None:
        if self._memory is not None and kind != ERROR:
            self._memory.learn(self._who, first)
        if not self._expected or kind == ERROR:
            self._pass_on(first + rest)
        elif first == self._expected:
            if self._on_saved is not None:
                self._on_saved()
            self._pass_on(rest)
        else:
            self._lose(SessionLost("the gateway asks for another login than the last time"))
            self._transport.abort()

    def _pass_on(self, data: bytes) -> None:
        self._is_over = True
        self._heard = b""
        self._transport.set_protocol(self.protocol)
        if data:
            self.protocol.data_received(data)

    def _lose(self, error: BaseException) -> None:
        self._is_over = self.is_in_vain = True
        self.protocol.connection_lost(error)

    # What happens before the first word is the driver's to know.

    def eof_received(self) -> bool | None:
        keeps: bool | None = self.protocol.eof_received()
        return keeps

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.is_in_vain = bool(self._transport.get_extra_info("early"))
        self.protocol.connection_lost(exc)
