"""``make conformance``: PgBouncer's own tests, from a checkout of their own, run against the gateway."""
