"""What stops the laboratory, with words for whoever started it."""

from __future__ import annotations

__all__ = ["LabError"]


class LabError(Exception):
    """The laboratory cannot do what it was asked to; the message says why, and what to do."""
