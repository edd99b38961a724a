"""Workers side by side: what is marked `alone` runs alone, and CI's rule about skips holds for them too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEST = """
import os, pathlib, time
import pytest

here = pathlib.Path(__file__).with_suffix(".here")

@pytest.mark.parametrize("number", range(20))
def test_beside_others(number):
    here.touch()
    try:
        time.sleep(0.005)
    finally:
        here.unlink()

@pytest.mark.alone
@pytest.mark.parametrize("number", range(5))
def test_alone(number):
    for _ in range(10):
        assert not list(here.parent.glob("*.here"))
        time.sleep(0.002)
"""


def run(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n", "2"]
    command += ["--rootdir", str(path), "-c", str(TESTS.parent / "pyproject.toml"), str(path), *arguments]
    return subprocess.run(
        command,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(path),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.timeout(180)
def test_alone_is_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(TEST)
    done = run(tmp_path, "--dist", "loadfile")
    assert "50 passed" in done.stdout, done.stdout + done.stderr
    assert not list(tmp_path.glob("pgtrunk-turns-*"))


@pytest.mark.timeout(180)
def test_a_skip_fails_ci_in_whatever_worker(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import pytest\ndef test_lazy(): pytest.skip('no time')\ndef test(): pass\n")
    (tmp_path / "test_b.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    done = run(tmp_path, CI="true")
    assert done.returncode == 1, done.stdout + done.stderr
    for words in ("test_lazy: no time", "test_b.py: could not import 'no_such_module'"):
        assert words in done.stdout
