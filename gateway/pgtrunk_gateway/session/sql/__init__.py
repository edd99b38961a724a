"""What the gateway has to know of SQL: commands about what a session has, and where they stand in a text. Pure."""
