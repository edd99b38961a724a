"""The QUIC connection that both ends of pgtrunk use: aioquic's state machine with our streams, credit, packets and
ACKs.

The layers, each in its file and each a subclass of the one before: streams.py, acks.py, then receiving.py, sending.py
(upon tail.py, short.py and stream_control.py), timers.py and early_flight.py side by side, and upon sending and timers
probing.py, then migrating.py. No socket, no loop, no clock: ``now`` is an argument, datagrams go in and come out.
"""

from __future__ import annotations

import logging

from .early_flight import EarlyFlight
from .migrating import Migrating
from .receiving import Receiving

__all__ = ["Connection"]

# aioquic warns on this logger of each connection that fails; an application that has set up no logging gets our error
# instead.
logging.getLogger("quic").addHandler(logging.NullHandler())


class Connection(EarlyFlight, Migrating, Receiving):
    """See ``StreamTable`` for the arguments and ``ConnectionDriver`` for what drives it."""

    def __repr__(self) -> str:
        role = "client" if self._is_client else "server"
        return f"<Connection {role} [{len(self._streams)} streams, {self.credit.held} bytes held]>"
