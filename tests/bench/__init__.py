"""``make bench``: what a query costs, beside a bare echo over QUIC and PgBouncer over TCP."""
