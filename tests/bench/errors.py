"""What keeps a benchmark from being run, said to whoever ran it."""

from __future__ import annotations

__all__ = ["BenchError"]


class BenchError(Exception):
    """Something could not be started, ended early, or answered wrongly."""
