"""Several gateway processes that share the listening ports: a supervisor, and its workers."""
