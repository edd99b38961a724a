"""Fixtures for all tests; each is defined in the helper that it belongs to."""

from __future__ import annotations

import hypothesis

from helpers.postgres import database, postgres

__all__ = ["database", "postgres"]

# A busy machine is no reason for an example to fail; pytest's own timeout ends what hangs.
hypothesis.settings.register_profile(
    "pgtrunk", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("pgtrunk")
