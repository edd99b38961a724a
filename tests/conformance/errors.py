"""What keeps the tests from being run, said to whoever ran them."""

from __future__ import annotations

__all__ = ["ConformanceError"]


class ConformanceError(Exception):
    """Something is missing, or one of the lists cannot be read."""
