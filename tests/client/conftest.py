"""Every test of the client is watched for what it leaves behind."""

from __future__ import annotations

import pytest

from helpers.leaks import no_leaks

__all__ = ["no_leaks"]


@pytest.fixture(autouse=True)
def _watched(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("no_leaks")
