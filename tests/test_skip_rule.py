"""CI's rule about skipped tests, which is in conftest.py: a run of pytest, of tests that are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.fixture
def skipped(tmp_path: Path) -> Path:
    path = tmp_path / "test_skipped.py"
    path.write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "@pytest.mark.skipif(True, reason='needs root: it asks for much')\n"
        "def test_for_root(): pass\n"
        "@pytest.mark.xfail(strict=True)\n"
        "def test_fails(): assert False\n"
    )
    return path


def run(path: Path, *arguments: str) -> tuple[int, str]:
    """pytest under CI's rule -> its exit code and what it says."""
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(path.parent), "-c", str(TESTS.parent / "pyproject.toml"), str(path), *arguments]
    ended = subprocess.run(
        command,
        env={**os.environ, "CI": "true", "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_test_for_the_other_kind_of_user_may_be_skipped(skipped: Path) -> None:
    code, output = run(skipped)
    assert code == 0, output
    assert "1 passed, 1 skipped, 1 xfailed" in output


def test_what_else_is_skipped_fails_the_run_and_is_named(skipped: Path) -> None:
    with skipped.open("a") as file:
        file.write("def test_lazy(): pytest.skip('no time')\n")
    (skipped.parent / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    code, output = run(skipped.parent)
    assert code == 1, output
    assert "test_lazy: no time" in output
    assert "test_module.py: could not import 'no_such_module'" in output


def test_the_tests_for_one_kind_of_user_can_be_chosen(skipped: Path) -> None:
    code, output = run(skipped, "--only-for", "root")
    assert code == 0, output
    assert "1 skipped, 2 deselected" in output
