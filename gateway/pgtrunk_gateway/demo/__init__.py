"""``pgtrunk-demo``: a PostgreSQL, certificates, a gateway and a trunk, with queries over QUIC to see it work."""
