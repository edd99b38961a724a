"""Cancels: the keys that clients show, the sessions they name, the requests to Postgres."""
