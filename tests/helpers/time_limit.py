"""pytest-timeout's clock stands still while no test's code runs.

It goes off as an exception wherever the interpreter is. Inside of a fixture or a test that fails the test; while pytest
writes down why a slow test has failed it would be an internal error, which ends the worker, and the run.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["TimeLimit"]


class TimeLimit:
    """Runs the clock in a test's set-up, call and teardown, and stops it after each."""

    def __init__(self) -> None:
        self._left = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        # It has just been started, for this test.
        self._left = 0.0
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        return (yield from self._phase())

    def _phase(self) -> Generator[None, object, object]:
        if self._left:
            signal.setitimer(signal.ITIMER_REAL, self._left)
        try:
            return (yield)
        finally:
            self._left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
