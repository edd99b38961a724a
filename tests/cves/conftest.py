"""Fixtures of the tests of CVEs: whole gateways, in which an exception that nobody caught fails the test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from helpers.gateways import start

__all__ = ["start"]


@pytest.fixture(autouse=True)
def _gateways_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "pgtrunk_gateway")
    yield
    faults = [record for phase in ("setup", "call", "teardown") for record in caplog.get_records(phase)]
    assert not [record.getMessage() for record in faults if record.levelno >= logging.ERROR]
