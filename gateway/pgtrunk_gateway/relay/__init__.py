"""Sessions at work: chunks between a client's transport and a backend, and the login before that."""
