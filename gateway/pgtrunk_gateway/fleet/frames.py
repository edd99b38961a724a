"""How supervisor and workers talk: JSON objects, each behind its length in four octets. Pure.

Both ends are the same program, so nothing here is negotiated; what does not read is a fault of ours.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from pgtrunk_gateway.errors import InternalError

__all__ = ["LONGEST", "Body", "Frames", "encode"]

Body: TypeAlias = dict[str, Any]
"""What a frame says: numbers, texts, None, and lists and objects of these."""

_HEAD: Final = 4
LONGEST: Final = 64 << 20
"""Octets of a frame: SHOW CLIENTS of 100,000 sessions has some 20 MB."""


def encode(body: Body) -> bytes:
    """One frame."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return len(data).to_bytes(_HEAD, "big") + data


class Frames:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Body]:
        """The frames that are complete now. Raises :class:`InternalError` for what is none."""
        self._data += data
        frames: list[Body] = []
        while len(self._data) >= _HEAD:
            size = int.from_bytes(self._data[:_HEAD], "big")
            if size > LONGEST:
                raise InternalError(f"a frame of {size} octets between processes of the fleet")
            end = _HEAD + size
            if len(self._data) < end:
                break
            frames.append(_decoded(bytes(self._data[_HEAD:end])))
            del self._data[:end]
        return frames


def _decoded(data: bytes) -> Body:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise InternalError(f"a frame that is no JSON between processes of the fleet: {error}") from error
    if not isinstance(body, dict):
        raise InternalError("a frame that is no object between processes of the fleet")
    return body
