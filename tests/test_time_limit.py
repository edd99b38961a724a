"""The time limit of a test: it is one for set-up, call and teardown together, and reports are not under it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEST = """
import time
import pytest

class Slow(Exception):
    def __repr__(self):
        time.sleep(1.2)
        return "told slowly"
    __str__ = __repr__

def test_told_slowly():
    raise Slow

@pytest.fixture
def slow():
    yield
    time.sleep(30)

def test_its_end(slow):
    pass

def test_its_call():
    time.sleep(30)

def test_after_them():
    pass
"""


@pytest.mark.timeout(180)
def test_it_fails_tests_and_not_the_run(tmp_path: Path) -> None:
    path = tmp_path / "test_slow.py"
    path.write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--timeout", "1"]
    command += ["--rootdir", str(tmp_path), "-c", str(TESTS.parent / "pyproject.toml"), str(path)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 2 passed, 1 error" in done.stdout
    assert "told slowly" in done.stdout
    assert done.stdout.count("Failed: Timeout (>1.0s)") >= 2
