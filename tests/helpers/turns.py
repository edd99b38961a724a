"""Tests marked `alone` among worker processes that run side by side: while such a test runs, no other does.

Every test enters a room that many may share, or one alone. Whoever wants it alone waits in its door, so that nobody
passes it by. Locks of files: they are gone with the process that holds them, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Hall", "Turns"]


class Hall:
    """In the process that starts the workers: tells each where the locks are."""

    def __init__(self, config: pytest.Config) -> None:
        folder = tempfile.TemporaryDirectory(prefix="pgtrunk-turns-")
        config.add_cleanup(folder.cleanup)
        self._folder = folder.name
        for name in ("door", "room"):
            Path(self._folder, name).touch()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["turns"] = self._folder


class Turns:
    """In a worker: each test waits for its turn, before its time-out begins."""

    def __init__(self, folder: str) -> None:
        self._door, self._room = (Path(folder, name) for name in ("door", "room"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.turn(alone=item.get_closest_marker("alone") is not None):
            return (yield)

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        with self._room.open() as room:
            with self._door.open() as door:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
                # A process that a test forks has these files too: what is not unlocked would stay locked with it.
                fcntl.flock(door, fcntl.LOCK_UN)
            try:
                yield
            finally:
                fcntl.flock(room, fcntl.LOCK_UN)
