"""One suite of behaviour for every way to Postgres, the direct one among them: it shows that no more is asked."""
