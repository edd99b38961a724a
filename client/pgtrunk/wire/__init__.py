"""The Postgres protocol v3 as bytes: framing, startup packets, messages. No I/O; shared by client and gateway."""
