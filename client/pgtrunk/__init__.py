"""Postgres sessions as streams over a few QUIC connections."""
