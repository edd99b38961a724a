"""A plugin of pytest, by -p: carries the suite's connections where the environment names a gateway, and keeps a record.

The record has a line of JSON for each test, written when the test is over, so that it is there whatever becomes of the
process: its name, its result, the first line of why, and how many sessions were carried for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from asyncpg._testbase import ClusterTestCase

from conformance.asyncpg_suite.carrying import Carrier

__all__ = ["CA_FILE", "GATEWAY", "RECORD", "pytest_collection_modifyitems", "pytest_configure"]

GATEWAY = "PGTRUNK_SUITE_GATEWAY"
"""host:port; where it is not set, nothing is carried."""
CA_FILE = "PGTRUNK_SUITE_CA_FILE"
RECORD = "PGTRUNK_SUITE_RECORD"
"""The file to add to."""

_BETTER_FIRST = ("passed", "skipped", "failed")
_LONGEST = 200
"""Characters of a message that are kept."""


def pytest_configure(config: pytest.Config) -> None:
    carrier = None
    if gateway := os.environ.get(GATEWAY):
        carrier = Carrier(gateway, os.environ[CA_FILE])
        carrier.install()
    config.pluginmanager.register(Recorder(Path(os.environ[RECORD]), carrier))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start servers of their own would say nothing: no gateway is before these."""
    for item in items:
        cls = getattr(item, "cls", None)
        if cls is not None and issubclass(cls, ClusterTestCase) and not _is_default(cls):
            item.add_marker(pytest.mark.skip(reason="its servers are its own"))


def _is_default(cls: type[ClusterTestCase]) -> bool:
    found = cls.setup_cluster.__func__ is ClusterTestCase.setup_cluster.__func__
    return bool(found)


class Recorder:
    """Writes the record. A test does as badly as its worst phase, subtests and the end of its class included."""

    def __init__(self, record: Path, carrier: Carrier | None) -> None:
        self._record = record
        self._carrier = carrier
        self._before = 0
        self._result = "passed"
        self._message = ""

    @property
    def _sessions(self) -> int:
        return 0 if self._carrier is None else self._carrier.sessions

    def pytest_runtest_logstart(self) -> None:
        self._begin()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # What unittest expects to fail is reported as skipped when it does.
        if not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read has no tests, and stands for itself."""
        if report.failed:
            self._begin()
            self._note(report)
            self._write(report.nodeid)

    def _begin(self) -> None:
        self._before = self._sessions
        self._result, self._message = "passed", ""

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if _BETTER_FIRST.index(report.outcome) > _BETTER_FIRST.index(self._result):
            self._result, self._message = report.outcome, _why(report)

    def _write(self, nodeid: str) -> None:
        line = {
            "test": nodeid.removeprefix("tests/"),
            "result": self._result,
            "message": self._message,
            "sessions": self._sessions - self._before,
        }
        with self._record.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        said = report.longrepr[2].removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message if crash is not None else str(report.longrepr)
    return said.strip().partition("\n")[0][:_LONGEST]
