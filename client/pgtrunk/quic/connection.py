"""The QUIC connection that both ends of pgtrunk use: aioquic's state machine with our streams, credit, packets and
ACKs.

The layers, each in its file and each a subclass of the one before: streams.py, acks.py, then receiving.py and
sending.py side by side. No socket, no loop, no clock: ``now`` is an argument, datagrams go in and come out.
"""

from __future__ import annotations

from .receiving import Receiving
from .sending import Sending

__all__ = ["Connection"]


class Connection(Sending, Receiving):
    """See ``StreamTable`` for the arguments and ``ConnectionDriver`` for what drives it."""

    def __repr__(self) -> str:
        role = "client" if self._is_client else "server"
        return f"<Connection {role} [{len(self._streams)} streams, {self.credit.held} bytes held]>"

    @property
    def peer_cannot_open_streams(self) -> bool:
        """Whether this side accepts no streams at all."""
        return self.limits.max_streams == 0
