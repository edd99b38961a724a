"""``pgtrunk-demo`` where what its extra brings is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["rich", "hdrh"])
def test_without_the_extra_it_is_told_what_to_install(missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None"
    hidden = f"{hide}; from pgtrunk_gateway.demo.command import main; sys.exit(main(['--once']))"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pgtrunk-demo: {missing} is not installed: pip install 'pgtrunk-gateway[demo]'\n"


def test_what_is_missing_of_our_own_is_no_matter_of_the_extra() -> None:
    hide = "import sys; sys.modules['pgtrunk_gateway.demo.load'] = None"
    hidden = f"{hide}; from pgtrunk_gateway.demo.command import main; sys.exit(main(['--once']))"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
