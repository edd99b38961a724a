"""Whether this CPU has more registers than Debian's User-Mode Linux knows, and what helps: `xstate.c` says how."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from netem.errors import LabError

__all__ = ["build", "is_larger"]

_SOURCE = Path(__file__).with_name("xstate.c")
_LARGE = {"amx_tile", "apx"}
_PATIENCE = 60.0


def is_larger(cpuinfo: str) -> bool:
    """``cpuinfo`` is the text of /proc/cpuinfo."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return found is not None and not _LARGE.isdisjoint(found[1].split())


def build(target: Path) -> None:
    """Compiles the library that is loaded ahead of libc. Raises :class:`LabError`."""
    argv = ["cc", "-O2", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
    environment = {**os.environ, "TMPDIR": str(target.parent)}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PATIENCE, check=False, env=environment, cwd="/"
        )
    except FileNotFoundError:
        raise LabError(
            "--link uml: this CPU has registers (AMX) that user-mode-linux 6.1 cannot keep; netem/uml/xstate.c helps, "
            "and is compiled for it: apt-get install gcc libc6-dev"
        ) from None
    if done.returncode:
        raise LabError(f"--link uml: {_SOURCE.name} cannot be compiled: {done.stderr.strip()}")
