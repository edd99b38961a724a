"""A connection to a real PostgreSQL at the level of bytes: logs in, then sends and reads what a test says."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from helpers.postgres_model import PostgresModel
from pgtrunk.wire.framing import messages
from pgtrunk_gateway.auth import NONCE_LENGTH, Plain
from pgtrunk_gateway.pool.handshake import Derive, Handshake, Send
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["RawConnection"]


class RawConnection:
    """Blocking, with a deadline of some seconds for each answer."""

    def __init__(self, server: EmbeddedPostgres, database: str) -> None:
        secret = Plain(server.password)
        target = Target(host=server.host, port=server.port, dbname=database, user=server.user, secret=secret)
        self._socket = socket.create_connection((server.host, server.port), timeout=10)
        self._data = b""
        self.handshake = Handshake(target, nonce=os.urandom(NONCE_LENGTH))
        self._socket.sendall(self.handshake.start())
        while not self.handshake.done:
            for step in self.handshake.feed(self._socket.recv(1 << 16)):
                match step:
                    case Send(data):
                        self._socket.sendall(data)
                    case Derive(derivation):
                        self._socket.sendall(self.handshake.derived(derivation.run()).data)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, count: int) -> bytes:
        """The next ``count`` messages; fewer if the server closes the connection."""
        while len(ends := [end for _, _, end in messages(self._data)]) < count:
            received = self._socket.recv(1 << 16)
            if not received:
                break
            self._data += received
        end = ends[min(count, len(ends)) - 1] if ends and count else 0
        answer, self._data = self._data[:end], self._data[end:]
        return answer

    def ready(self) -> None:
        """Reads up to ReadyForQuery."""
        while self.read(1)[:1] != b"Z":
            pass

    def model(self) -> PostgresModel:
        """A model with the settings of this connection."""
        return PostgresModel(settings=self.handshake.parameters)
