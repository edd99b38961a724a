"""Backends: opened when sessions wait, leased to one session at a time, closed when old or idle."""
