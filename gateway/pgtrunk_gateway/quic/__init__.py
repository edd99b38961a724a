"""The server's end of QUIC, on top of :mod:`pgtrunk.quic`: sockets and who shares them, handshakes, tickets, fleets."""

import pgtrunk.quic  # noqa: F401 - it checks aioquic, before a module here imports what may be missing there
