"""qlog files: what a QUIC connection sent, received and thought, for qvis and other viewers.

One file to a connection, for its owner alone (0600), and valid JSON after each write: the end is written again behind
what is added. What would let somebody else into a connection is left out: tokens, and those of stateless resets. No
payload is in it either, and no key. draft-ietf-quic-qlog-main-schema, draft-ietf-quic-qlog-quic-events.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from aioquic.quic.logger import QLOG_VERSION, QuicLogger, QuicLoggerTrace

from pgtrunk.errors import UsageError

if TYPE_CHECKING:
    from aioquic.quic.packet import QuicTransportParameters

__all__ = ["QlogFolder", "QlogTrace"]

logger = logging.getLogger("pgtrunk.quic")

MAX_SIZE: Final = 16 << 20
"""Octets of one file; what comes after them is left out."""

MAX_FILES: Final = 1000
"""Files that one process writes; connections after them are not logged."""

WRITTEN_AT: Final = 64 << 10
"""Octets that wait to be written together ..."""

WRITTEN_AFTER: Final = 1.0
"""... unless the last were written so many seconds ago."""

_END: Final = b"]}]}\n"
_SECRETS: Final = frozenset({"reset_token", "stateless_reset_token", "token"})


class QlogFolder(QuicLogger):
    """Makes the files of one folder. aioquic's logger, in all that it asks of one.

    Raises `UsageError` where ``path`` is no folder that can be written to; ``setting`` is its name.
    """

    def __init__(
        self, path: str, *, setting: str = "qlog_dir", max_size: int = MAX_SIZE, files: int = MAX_FILES
    ) -> None:
        super().__init__()
        if not os.path.isdir(path):
            raise UsageError(f'{setting} "{path}": no such directory; make it first')
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(f'{setting} "{path}": files cannot be made there (permissions)')
        self.path = path
        self._setting = setting
        self._max_size = max_size
        self._left = files
        self._has_warned = False

    def start_trace(self, is_client: bool, odcid: bytes) -> QlogTrace:
        """A connection begins. It goes on without a file where there can be none."""
        trace = QlogTrace(is_client=is_client, odcid=odcid, max_size=self._max_size)
        if self._left <= 0:
            self._warn(f"no more than {MAX_FILES} connections are logged by one process")
            return trace
        self._left -= 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{stamp}-{odcid.hex()}-{'client' if is_client else 'server'}.qlog"
        try:
            fd = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as exc:
            self._warn(f"{name} cannot be made: {(exc.strerror or str(exc)).lower()}")
            return trace
        trace.begin(os.fdopen(fd, "wb", buffering=0))
        return trace

    def end_trace(self, trace: QuicLoggerTrace) -> None:
        """A connection is over."""
        if isinstance(trace, QlogTrace):
            trace.close()

    def _warn(self, words: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning('%s "%s": %s', self._setting, self.path, words)


class QlogTrace(QuicLoggerTrace):
    """One connection's events."""

    def __init__(self, *, is_client: bool, odcid: bytes, max_size: int) -> None:
        super().__init__(is_client=is_client, odcid=odcid)
        self._vantage_point = {"name": "pgtrunk", "type": "client" if is_client else "server"}
        self._max_size = max_size
        self._file: BinaryIO | None = None
        self._size = 0  # octets in the file, less its end
        self._waiting: list[bytes] = []
        self._waits = 0  # their octets
        self._written_at = 0.0
        self._is_first = True
        self._held: list[dict[str, Any]] = []

    def begin(self, file: BinaryIO) -> None:
        self._file = file
        head = {"common_fields": {"ODCID": self._odcid.hex()}, "vantage_point": self._vantage_point}
        trace = json.dumps(head)[:-1]
        start = f'{{"qlog_format": "JSON", "qlog_version": "{QLOG_VERSION}", "traces": [{trace}, "events": ['
        self._write(start.encode())

    def log_event(self, *, category: str, event: str, data: dict[str, Any]) -> None:
        # aioquic adds the frames of a packet that came as it finds them, and logs other things meanwhile: all of it is
        # written when the next packet comes or goes.
        if event.startswith("packet_"):
            self._take_held()
        if self._file is not None:
            self._held.append({"time": time.time() * 1000, "name": f"{category}:{event}", "data": data})

    def _take_held(self) -> None:
        held, self._held = self._held, []
        for each in held:
            line = json.dumps(each, default=str).encode()
            if self._size + self._waits + len(line) > self._max_size:
                words = f"the rest is left out: a file has {self._max_size} octets at most"
                self._add(json.dumps(each | {"name": "generic:info", "data": {"message": words}}).encode())
                self.close()
                return
            self._add(line)
        if self._waits >= WRITTEN_AT or time.time() - self._written_at >= WRITTEN_AFTER:
            self._flush()

    def close(self) -> None:
        """Writes what waits; nothing is added any more."""
        self._take_held()
        self._flush()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _add(self, line: bytes) -> None:
        self._waiting.append(line if self._is_first else b",\n" + line)
        self._is_first = False
        self._waits += len(line) + 2

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting, self._waits = self._waiting, [], 0
            self._write(b"".join(waiting))

    def _write(self, data: bytes) -> None:
        self._written_at = time.time()
        file = self._file
        if file is None:
            return
        try:
            file.seek(self._size)
            file.write(data + _END)
        except OSError as exc:
            logger.warning("a qlog file cannot be written: %s", exc.strerror or exc)
            self._file = None
            file.close()
        self._size += len(data)

    # What is not for others.

    def encode_new_connection_id_frame(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return _public(super().encode_new_connection_id_frame(*args, **kwargs))

    def encode_new_token_frame(self, token: bytes) -> dict[str, Any]:
        return _public(super().encode_new_token_frame(token))

    def encode_transport_parameters(self, owner: str, parameters: QuicTransportParameters) -> dict[str, Any]:
        return _public(super().encode_transport_parameters(owner, parameters))


def _public(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in _SECRETS}
