"""``make deaths``: who dies or stalls, in which state, and what the others notice of it."""
