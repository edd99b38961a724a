"""pytest-timeout's clock stands still while no test's code runs.

It goes off as an exception wherever the interpreter is. Inside of a fixture or a test that fails the test; while pytest
writes down why a slow test has failed it would be an internal error, which ends the worker, and the run.

And where no Python runs it does not go off at all: in an event loop's close, say, that waits in C for what is never
closed. Then the process says where it stands, and ends, or it would wait for ever, and with it who wants a turn alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["TimeLimit"]


GRACE: Final = 60.0
"""Seconds beyond a test's time after which its process ends."""


class TimeLimit:
    """Runs the clock in a test's set-up, call and teardown, and stops it after each."""

    def __init__(self, config: pytest.Config) -> None:
        self._left = 0.0
        capture = config.pluginmanager.getplugin("capturemanager")
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            self._stderr = os.dup(2)
        config.add_cleanup(lambda: os.close(self._stderr))

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
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        if left:
            faulthandler.dump_traceback_later(left + GRACE, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
