"""The console: the database `pgbouncer`, in which an administrator looks at the gateway and steers it."""
