"""``make conformance-asyncpg``: asyncpg's own tests, from a checkout of its repository, carried over QUIC."""
