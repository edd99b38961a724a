"""What the gateway counts, and what SHOW STATS makes of it."""
