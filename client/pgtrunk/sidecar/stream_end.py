"""The stream's end of a session: what happens there is the session's to hear."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk.sidecar.session import Session

__all__ = ["StreamEnd"]


class StreamEnd(asyncio.Protocol):
    """What a session's stream is given."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def data_received(self, data: bytes) -> None:
        self._session.from_stream(data)

    def eof_received(self) -> bool:
        self._session.stream_finished()
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._session.stream_lost(exc)

    def pause_writing(self) -> None:
        self._session.pause_driver()

    def resume_writing(self) -> None:
        self._session.resume_driver()
