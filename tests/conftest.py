"""Fixtures for all tests; each is defined in the helper that it belongs to."""

from __future__ import annotations

from helpers.postgres import database, postgres

__all__ = ["database", "postgres"]
