"""Sessions over TLS over TCP, each on a connection of its own: for networks that let no UDP through."""
