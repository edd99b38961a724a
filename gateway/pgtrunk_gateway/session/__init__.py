"""The session, sans-IO: its states, its statements, its settings, and the replies that are owed to it."""
