"""The frames of the control stream of "pgtrunk/1", see ARCHITECTURE.md (formats). Bytes in, frames out, and back.

    frame   length (2 octets), type (1), version (1), body; the length counts all that follows it, 2 to `MAX_LENGTH`
    HELLO   type 1: features (4), a bit each: `WANTS_STATS`
    GOAWAY  type 2: milliseconds (4) in which to leave, or `NO_LIMIT`; port (2), size of the host (1), host in ASCII
    STATS   type 3: how many stages (1), then each: its number (1), microseconds of all its times together (8), how many
            buckets (2), then each: its number (1), how many times it has (4)

Integers are big endian. Frames of unknown types and of unknown versions are skipped, and so is what a body has beyond
what its version defines: whoever adds to one needs no new version. HELLO comes first, and once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pgtrunk.histogram import bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CONTROL_ALPN",
    "MAX_LENGTH",
    "WANTS_STATS",
    "ControlError",
    "ControlFrame",
    "Goaway",
    "Hello",
    "Reader",
    "Stage",
    "Stats",
]

CONTROL_ALPN: Final = "pgtrunk/1"
"""What a connection calls itself on which both ends speak a control stream, beside streams of protocol v3."""

MAX_LENGTH: Final = 4096
"""Octets of a frame after its length."""

NO_LIMIT: Final = 0xFFFFFFFF
"""The time of a GOAWAY that sets none."""

WANTS_STATS: Final = 1 << 0
"""The feature of a client that takes STATS."""

_VERSION: Final = 1
_HEADER: Final = Struct("!HBB")
_HELLO: Final = Struct("!I")
_GOAWAY: Final = Struct("!IHB")
_STAGE: Final = Struct("!BQH")
_BUCKET: Final = Struct("!BI")
_MOST: Final = 0xFFFFFFFF
_WAIT: Final = 1
_EXECUTION: Final = 2
_INNER: Final = 2
"""Octets that the length counts besides the body: type and version."""


class ControlError(ValueError):
    """The peer does not speak the control stream as it is specified."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first word of each end."""

    TYPE = 1

    features: int = 0
    """What it can do beyond this specification, a bit each."""

    def encode(self) -> bytes:
        return _frame(self.TYPE, _HELLO.pack(self.features))

    @classmethod
    def decode(cls, body: bytes) -> Hello:
        """Raises `ControlError`."""
        if len(body) < _HELLO.size:
            raise ControlError(f"a HELLO of {len(body)} octets")
        return cls(*_HELLO.unpack_from(body))


@dataclass(frozen=True, slots=True)
class Goaway:
    """A gateway asks its client to move: no new streams here, and those that are idle elsewhere."""

    TYPE = 2

    within: float | None = None
    """Seconds after which what is left is closed; None: no limit."""
    to: tuple[str, int] | None = None
    """Host and port to go to; None: the address that the client knows."""

    def encode(self) -> bytes:
        """Raises ValueError for a host that is none."""
        host, port = self.to or ("", 0)
        name = host.encode("ascii")
        if self.to is not None and not (0 < len(name) <= 255 and _is_host(name) and 0 < port <= 0xFFFF):
            raise ValueError(f"nowhere to go to: {self.to!r}")
        time = NO_LIMIT if self.within is None else max(0, min(round(self.within * 1000), NO_LIMIT - 1))
        return _frame(self.TYPE, _GOAWAY.pack(time, port, len(name)) + name)

    @classmethod
    def decode(cls, body: bytes) -> Goaway:
        """Raises `ControlError`."""
        if len(body) < _GOAWAY.size:
            raise ControlError(f"a GOAWAY of {len(body)} octets")
        time, port, size = _GOAWAY.unpack_from(body)
        name = body[_GOAWAY.size : _GOAWAY.size + size]
        if len(name) < size or not _is_host(name) or (name and not port):
            raise ControlError("a GOAWAY to nowhere")
        within = None if time == NO_LIMIT else time / 1000
        return cls(within, (name.decode("ascii"), port) if name else None)


class Stage(NamedTuple):
    """How long something took, each time that it was done since the frame before."""

    microseconds: int = 0
    """Of all the times together."""
    counts: tuple[tuple[int, int], ...] = ()
    """How many there were in each bucket of `pgtrunk.histogram`, as (bucket, count)."""

    @classmethod
    def of(cls, times: Iterable[float]) -> Stage:
        """That of these times, in seconds."""
        times = list(times)
        counts = Counter(map(bucket_of, times))
        return cls(round(sum(times) * 1e6), tuple(sorted(counts.items())))

    def encode(self, number: int) -> bytes:
        head = _STAGE.pack(number, max(self.microseconds, 0), len(self.counts))
        return head + b"".join(_BUCKET.pack(bucket, min(count, _MOST)) for bucket, count in self.counts)


@dataclass(frozen=True, slots=True)
class Stats:
    """A gateway tells how long its part of the connection's queries took, since the frame before."""

    TYPE = 3

    wait: Stage = Stage()
    """Stage 1: the wait for a backend, of those that did not have one at once."""
    execution: Stage = Stage()
    """Stage 2: from when a request was handed to its backend until all of its answer had come."""

    def encode(self) -> bytes:
        stages = [(_WAIT, self.wait), (_EXECUTION, self.execution)]
        told = [stage.encode(number) for number, stage in stages if stage.counts]
        return _frame(self.TYPE, bytes((len(told),)) + b"".join(told))

    @classmethod
    def decode(cls, body: bytes) -> Stats:
        """Raises `ControlError`. Stages of other numbers are skipped."""
        stages: dict[int, Stage] = {}
        at = 1
        try:
            for _ in range(body[0]):
                number, microseconds, size = _STAGE.unpack_from(body, at)
                start, at = at + _STAGE.size, at + _STAGE.size + size * _BUCKET.size
                counts = tuple(_BUCKET.iter_unpack(body[start:at]))
                if len(counts) < size:
                    raise ControlError(f"a STATS of {len(body)} octets")
                stages[number] = Stage(microseconds, counts)
        except (IndexError, error):
            raise ControlError(f"a STATS of {len(body)} octets") from None
        return cls(stages.get(_WAIT, Stage()), stages.get(_EXECUTION, Stage()))


ControlFrame: TypeAlias = Hello | Goaway | Stats

_KNOWN: Final[dict[int, type[Hello] | type[Goaway] | type[Stats]]] = {
    Hello.TYPE: Hello,
    Goaway.TYPE: Goaway,
    Stats.TYPE: Stats,
}


class Reader:
    """Puts the frames of one control stream together. It never holds more than one frame besides what it is fed."""

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = False

    def feed(self, data: bytes) -> list[ControlFrame]:
        """The frames that are complete now, less those to be skipped. Raises `ControlError`; then it is of no use."""
        data = self._rest + data
        at = 0
        frames: list[ControlFrame] = []
        while len(data) - at >= _HEADER.size:
            length, kind, version = _HEADER.unpack_from(data, at)
            if not _INNER <= length <= MAX_LENGTH:
                raise ControlError(f"a frame of {length} octets")
            self._check_order(kind)
            end = at + _HEADER.size - _INNER + length
            if end > len(data):
                break
            if version == _VERSION and kind in _KNOWN:
                frames.append(_KNOWN[kind].decode(data[at + _HEADER.size : end]))
            self._greeted = True
            at = end
        self._rest = data[at:]
        return frames

    def _check_order(self, kind: int) -> None:
        if (kind == Hello.TYPE) is self._greeted:
            raise ControlError("a second HELLO" if self._greeted else f"frame type {kind} before HELLO")


def _frame(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(_INNER + len(body), kind, _VERSION) + body


def _is_host(name: bytes) -> bool:
    return all(0x21 <= octet <= 0x7E for octet in name)
