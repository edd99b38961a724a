"""The two halves of a bidirectional stream, as bytes in order.

They hold data and say what happened to it; they know no frames, no packets, no credit and no transport. They replace
aioquic's halves, whose range sets cost several microseconds per message even when everything is sent, acknowledged and
received in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.buffer import size_uint_var
from aioquic.quic.packet import QuicErrorCode, QuicStreamFrame
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.stream import FinalSizeError, QuicStream, QuicStreamReceiver, QuicStreamSender

if TYPE_CHECKING:
    from .control_stream import ControlStreams
    from .transport import StreamTransport

__all__ = ["NEVER", "Receiver", "Sender", "Stream"]

NEVER = -1
"""A low-water mark that no buffer reaches: the writer is not paused."""


class Sender(QuicStreamSender):
    """Bytes to send: first what was lost or is to be repeated, then what was never sent.

    aioquic reports each packet once, as acknowledged or as lost; but a byte may be in several packets, see
    redundancy.py. So it may be acknowledged twice, lost after it was acknowledged, or acknowledged while it waits to
    be sent again: each report is clipped to what is still open. ``highest_offset`` is the first byte never sent;
    ``_buffer`` starts at the first byte not yet acknowledged, and nothing below it ever waits in ``_lost``.
    """

    def __init__(self, stream_id: int | None, writable: bool) -> None:
        super().__init__(stream_id, writable)
        self._lost: list[tuple[int, int]] = []
        self.seen = 0
        """Bytes below were looked at when they left: each is repeated once at most. Kept by tail.py, as is ..."""
        self.fin_seen = False
        self.acked_again = 0
        """Frames acknowledged with nothing new in them: the original and its copy have both come."""

    def __len__(self) -> int:
        """Bytes written and not yet acknowledged."""
        return len(self._buffer)

    @property
    def written(self) -> int:
        """All bytes that were ever written."""
        return self._buffer_stop

    @property
    def departed(self) -> int:
        """Those of them that have been in a packet."""
        return self.highest_offset

    def write(self, data: bytes | bytearray | memoryview, end_stream: bool = False) -> None:
        """Append data, and with ``end_stream`` the FIN."""
        if self._buffer_fin is not None or self._reset_error_code is not None:
            raise RuntimeError("cannot write to a stream after its end")
        self._buffer += data
        self._buffer_stop = self._buffer_start + len(self._buffer)
        if end_stream:
            self._buffer_fin = self._buffer_stop
            self._pending_eof = True
        if end_stream or self._buffer_stop > self.highest_offset:
            self.buffer_is_empty = False

    def take(self, room: int, max_offset: int) -> tuple[int, bytes, bool] | None:
        """Return (offset, data, fin) of the next frame with at most ``room`` bytes, or None where credit or room is
        short.

        ``max_offset`` is how far flow control lets the stream go. What was lost goes first: it is what the peer waits
        for.
        """
        if self._lost:
            return self._take_lost(room)
        start = self.highest_offset
        stop = min(start + room, max_offset, self._buffer_stop)
        fin = self._pending_eof and stop == self._buffer_fin
        if stop <= start and not (fin and room >= 0):
            return None
        base = self._buffer_start
        data = bytes(self._buffer[start - base : stop - base])
        self.highest_offset = stop
        if fin:
            self._pending_eof = False
        if stop == self._buffer_stop and not self._pending_eof:
            self.buffer_is_empty = True
        return start, data, fin

    def _take_lost(self, room: int) -> tuple[int, bytes, bool] | None:
        start, stop = self._lost[0]
        if room < 1:
            return None
        if start + room < stop:
            stop = start + room
            self._lost[0] = (stop, self._lost[0][1])
        else:
            del self._lost[0]
        fin = self._pending_eof and stop == self._buffer_fin
        if fin:
            self._pending_eof = False
        base = self._buffer_start
        if not self._lost and self.highest_offset == self._buffer_stop and not self._pending_eof:
            self.buffer_is_empty = True
        return start, bytes(self._buffer[start - base : stop - base]), fin

    def on_acked(self, start: int, stop: int, fin: bool) -> bool:
        """Forget acknowledged bytes; True when the last byte and the FIN are."""
        if self._reset_error_code is not None:
            return False
        if stop > start:
            if start == self._buffer_start and not self._lost and not len(self._acked):
                self._buffer_start = stop
                del self._buffer[: stop - start]
            else:
                self._take_acked(start, stop)
        if fin:
            self._acked_fin = True
            if self._pending_eof:
                self._pending_eof = False
                self._look_empty()
        if self._acked_fin and self._buffer_start == self._buffer_fin:
            self.is_finished = True
            return True
        return False

    def _take_acked(self, start: int, stop: int) -> None:
        """Not the first bytes that are open, or not for the first time, or some wait to be sent again."""
        if not self._open_in(start, stop):
            self.acked_again += 1
            return
        start = max(start, self._buffer_start)
        self._lost = [each for waiting in self._lost for each in _without(waiting, start, stop)]
        self._acked.add(start, stop)
        if self._acked[0].start == self._buffer_start:
            first = self._acked.shift()
            self._buffer_start = first.stop
            del self._buffer[: first.stop - first.start]
        self._look_empty()

    def on_lost(self, start: int, stop: int, fin: bool) -> None:
        """Put lost bytes back, lowest first, save those that have arrived all the same."""
        self.requeue(start, stop, fin)

    def is_open(self, start: int, stop: int, fin: bool) -> bool:
        """Whether any of these bytes, or the FIN, is still to be acknowledged."""
        if self._reset_error_code is not None or self.is_finished:
            return False
        return bool(self._open_in(start, stop)) or (fin and not self._acked_fin)

    def requeue(self, start: int, stop: int, fin: bool) -> None:
        """Have what is open of these bytes, and of the FIN, sent once more."""
        if not self.is_open(start, stop, fin):
            return
        self._lost = _merged([*self._lost, *self._open_in(start, stop)])
        self._pending_eof |= fin and not self._acked_fin
        self.buffer_is_empty = False

    def rewind(self) -> None:
        """Nothing of what was sent has arrived, nor will: all of it is to be sent as if for the first time."""
        self._lost.clear()
        self.highest_offset = self.seen = 0
        self.fin_seen = False
        self._pending_eof = self._buffer_fin is not None and self._reset_error_code is None
        self._look_empty()

    @property
    def waiting(self) -> int:
        """Bytes to send, for the first time or again."""
        return self._buffer_stop - self.highest_offset + sum(stop - start for start, stop in self._lost)

    def _open_in(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of these bytes that are not acknowledged."""
        start = max(start, self._buffer_start)
        parts = [(start, stop)] if stop > start else []
        for acked in self._acked:
            parts = [each for part in parts for each in _without(part, acked.start, acked.stop)]
        return parts

    def _look_empty(self) -> None:
        self.buffer_is_empty = not (self._lost or self._pending_eof or self.highest_offset < self._buffer_stop)

    def reset(self, error_code: int) -> None:
        """Stop sending for good; all that waits is dropped."""
        if self._reset_error_code is None and not self.is_finished:
            super().reset(error_code)
            self._lost.clear()
            del self._buffer[:]
            self._pending_eof = False


def _without(part: tuple[int, int], start: int, stop: int) -> list[tuple[int, int]]:
    """What is left of a range of bytes without another."""
    return [each for each in ((part[0], min(part[1], start)), (max(part[0], stop), part[1])) if each[0] < each[1]]


def _merged(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those joined that touch or overlap."""
    parts.sort()
    merged = parts[:1]
    for start, stop in parts[1:]:
        if start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


class Receiver(QuicStreamReceiver):
    """Bytes received, put in order. ``starting_offset()`` is how far they have been handed on."""

    def __init__(self, stream_id: int | None, readable: bool) -> None:
        super().__init__(stream_id, readable)
        self.discarding = False

    def take(self, offset: int, data: bytes, fin: bool) -> tuple[bytes, bool] | None:
        """Return (data, end of stream) that can be handed on now, or None while bytes before it are missing.

        Raises FinalSizeError when the peer contradicts itself.
        """
        if (
            offset == self._buffer_start
            and not self._buffer
            and not self.is_finished
            and self._final_size is None
            and not self.discarding
        ):
            stop = offset + len(data)
            # A FIN that ends before bytes which came already is a contradiction: the slow path says so.
            if not fin or stop >= self.highest_offset:
                if fin:
                    self._final_size = stop
                    self.is_finished = True
                self._buffer_start = stop
                if stop > self.highest_offset:
                    self.highest_offset = stop
                return (data, fin) if data or fin else None
        return self._take_slowly(offset, data, fin)

    def _take_slowly(self, offset: int, data: bytes, fin: bool) -> tuple[bytes, bool] | None:
        if self.discarding:
            self._discard(offset + len(data), fin)
            return None
        event = self.handle_frame(QuicStreamFrame(data=data, fin=fin, offset=offset))
        return None if event is None else (event.data, event.end_stream)

    def _discard(self, stop: int, fin: bool) -> None:
        """Keep the count but not the bytes: nobody will read them. Once the final size is known nothing is awaited."""
        if self._final_size is not None and (stop > self._final_size or (fin and stop != self._final_size)):
            raise FinalSizeError("data beyond the final size")
        if fin and stop < self.highest_offset:
            raise FinalSizeError("final size below data that was received")
        self.highest_offset = max(self.highest_offset, stop)
        if fin:
            self._final_size = stop
            self.is_finished = True

    def discard(self) -> None:
        """Drop what waits for a gap to close, and all that is still to come."""
        self.discarding = True
        self._buffer.clear()
        self._ranges = RangeSet()
        if self._final_size is not None:
            self.is_finished = True

    def stop(self, error_code: int = QuicErrorCode.NO_ERROR) -> None:
        """Ask the peer to send no more, once."""
        if self._stop_error_code is None:
            super().stop(error_code)


class Stream(QuicStream):
    """Both halves, and what the layers above remember of a stream. One that only one end may write to has a half that
    was finished from the start."""

    def __init__(
        self,
        stream_id: int,
        max_stream_data_local: int,
        max_stream_data_remote: int,
        *,
        readable: bool = True,
        writable: bool = True,
    ) -> None:
        self.is_blocked = False
        self.max_stream_data_local = max_stream_data_local
        self.max_stream_data_local_sent = max_stream_data_local
        self.max_stream_data_remote = max_stream_data_remote
        self.stream_id: int = stream_id
        self.sender: Sender = Sender(stream_id, writable)
        self.receiver: Receiver = Receiver(stream_id, readable)
        self.header_size = 3 + size_uint_var(stream_id)
        """Octets of its STREAM frames before the data: type, id and a length of two; the offset comes on top."""
        self.window = max_stream_data_local
        """Unread bytes that the peer may have outstanding; grows, see flow.py."""
        self.consumed = 0
        """Bytes that the application took or never will."""
        self.renewed_at = -1.0
        """When credit was last given, by the connection's clock; negative: never."""
        self.queued = False
        """Whether it is in the send queue."""
        self.low_mark = NEVER
        """Unacknowledged bytes at which a paused writer is called back."""
        self.in_use = True
        """Whether a transport still has it. Its slot is not given to the peer before that ends."""
        self.transport: StreamTransport | ControlStreams | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.stream_id} [{len(self.sender)} unacknowledged, {self.unread} unread]>"

    @property
    def unread(self) -> int:
        """Bytes received, gaps included, and not consumed."""
        return self.receiver.highest_offset - self.consumed
