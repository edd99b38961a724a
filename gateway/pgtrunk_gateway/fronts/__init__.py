"""Where sessions come in: QUIC streams, TCP connections, unix sockets."""
