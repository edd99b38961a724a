"""What all tests share: fixtures, each defined in the helper that it belongs to; what CI thinks of skipped tests; the
order in which workers take files, and whose turn it is.

A skipped test looks like a passed one, so where CI=true it fails the run. Exempt are those that only the other kind of
user can run, root or not: they carry a skipif whose reason says so, and `--only-for` selects them for that user.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from typing import Final

import hypothesis
import pytest

from helpers.postgres import database, postgres
from helpers.site import site
from helpers.time_limit import TimeLimit
from helpers.turns import Hall, Turns

__all__ = ["database", "postgres", "site"]

# A busy machine is no reason for an example to fail; pytest's own timeout ends what hangs. In CI the examples are the
# same in every run, so that a change is judged by what it does; everywhere else they are new ones each time.
hypothesis.settings.register_profile(
    "pgtrunk",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
    derandomize=os.environ.get("CI") == "true",
)
hypothesis.settings.load_profile("pgtrunk")

_USERS: Final = {"root": "needs root: ", "user": "needs an ordinary user: "}
"""How the reason of a skipif begins that is about who runs the tests."""

_SLOW: Final = ("bench", "behaviour", "cves", "deaths", "demo", "e2e", "wan")
"""Folders whose tests mostly wait. They come first, or a worker would be at one of them when all others are done."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-for", choices=[*_USERS], help="run the tests that need this kind of user, and no others")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TimeLimit(config))
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(SkipsFail())
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        config.pluginmanager.register(Turns(workerinput["turns"]))
    elif getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Hall(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent.name not in _SLOW)
    user = config.getoption("--only-for")
    if user is not None:
        others = [item for item in items if not _needs(item, _USERS[user])]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    # Tests collect garbage, to see that nothing is left unclosed, and pytest-asyncio does after each loop. Thousands of
    # collected tests need not be looked through each time: that took more than half of a run.
    _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """What a file's tests have left for good, reports above all, need not be looked through either. Its fixtures are
    gone here, and their garbage is collected first: nothing escapes that says with a warning that it was left open."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        _freeze()
    return done


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _needs(item: pytest.Item, user: str) -> bool:
    return any(mark.kwargs.get("reason", "").startswith(user) for mark in item.iter_markers("skipif"))


class SkipsFail:
    """Fails a run that is otherwise fine and in which a test was skipped, whoever runs it."""

    def __init__(self) -> None:
        self.skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure is reported as skipped too.
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(tuple(_USERS.values())):
            self.skips.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.skips and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skips:
            terminalreporter.section("skipped, which fails the run where CI=true", red=True)
            for skip in self.skips:
                terminalreporter.line(skip)
