"""The control streams of one connection: one that each end opens, unidirectional, once the handshake is complete.

A connection that agreed on "postgresql" has none, and then nothing here does anything. They are no sessions: neither
the limits of streams nor the counts of them know of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .control import CONTROL_ALPN, ControlError, Goaway, Hello, Reader, Stats
from .hooks import nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from .control import ControlFrame
    from .driver import ConnectionDriver
    from .stream import Stream

__all__ = ["CONTROL_ERROR", "ControlStreams"]

CONTROL_ERROR: Final = 1
"""The application error code by which a connection is closed whose peer does not keep to the specification."""


class ControlStreams:
    """What this end says, and what the other end has said."""

    def __init__(self, driver: ConnectionDriver) -> None:
        self.hello: Hello | None = None
        """What the other end can do; None: it has not said."""
        self.features = 0
        """What this end can do: bits for its HELLO."""
        self.on_goaway: Callable[[Goaway], object] = nothing
        self.on_stats: Callable[[Stats], object] = nothing
        self._driver = driver
        self._ours: Stream | None = None
        self._theirs: Stream | None = None
        self._reader = Reader()
        self._failed = False

    @property
    def agreed(self) -> bool:
        """Whether the handshake has settled on it."""
        return self._driver.quic.tls.alpn_negotiated == CONTROL_ALPN

    @property
    def speaks(self) -> bool:
        """Whether the other end hears what is said."""
        return self._ours is not None and self._ours.sender._reset_error_code is None

    def begin(self) -> None:
        """The handshake is complete."""
        if self.agreed:
            self._ours = self._driver.quic.open_control()
            self.send(Hello(self.features))

    def send(self, frame: ControlFrame) -> None:
        """Says something, where anybody hears it."""
        if self._ours is not None and self.speaks:
            self._driver.quic.write(self._ours, frame.encode())
            self._driver.touch()

    # -- as the transport of the stream that the other end opened; for the driver

    def accept(self, stream: Stream) -> None:
        """The other end has opened its control stream; a second one is beyond what it may open."""
        if not self.agreed:
            self._fail("a control stream, which was not agreed on")
            return
        self._theirs = stream
        stream.transport = self

    def receive(self, data: bytes, end_of_stream: bool) -> None:
        """Bytes of it came."""
        stream, driver = self._theirs, self._driver
        if stream is None or self._failed:
            return
        if driver.quic.consume(stream, len(data)):
            driver.touch()
        try:
            frames = self._reader.feed(data)
        except ControlError as exc:
            self._fail(f"on the control stream: {exc}")
            return
        for frame in frames:
            if isinstance(frame, Hello):
                self.hello = frame
            elif driver.quic.configuration.is_client:
                # What only a gateway has to say.
                if isinstance(frame, Goaway):
                    self.on_goaway(frame)
                else:
                    self.on_stats(frame)
        if end_of_stream:
            self._fail("the control stream has ended")

    def on_reset(self, stream_id: int) -> None:
        """A stream that is no session was reset."""
        if self._theirs is not None and self._theirs.stream_id == stream_id:
            self._fail("the control stream was reset")

    def resume_writer(self) -> None:
        """Nothing here ever waits for room."""

    def _fail(self, reason: str) -> None:
        self._failed = True
        # The driver finds it closed, and tells its owner as of any other breach.
        self._driver.quic.close(CONTROL_ERROR, reason_phrase=reason)
