"""Loads the guest kernel's modules from where the package has them; modprobe looks in /lib/modules alone.

Runs in the guest. Which files a module needs, and in which order, is a pure function of ``modules.dep``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from netem.errors import LabError

__all__ = ["MODULES", "load", "order"]

MODULES = Path("/usr/lib/uml/modules")
_FINIT_MODULE = {"x86_64": 313}


def load(names: Sequence[str]) -> None:
    """Loads modules and what they need. Raises :class:`LabError`; one that is part of the kernel is fine."""
    folder = MODULES / platform.release()
    builtin = {Path(line).stem for line in (folder / "modules.builtin").read_text().splitlines()}
    files = order((folder / "modules.dep").read_text(), [name for name in names if name not in builtin])
    for file in files:
        _load(folder / file)


def order(dependencies: str, names: Sequence[str]) -> list[str]:
    """The files to load, in order: ``modules.dep`` has a line for each, ``a.ko: b.ko c.ko``, the last needed first."""
    lines = dict(line.split(":", 1) for line in dependencies.splitlines() if ":" in line)
    by_name = {Path(file).stem.replace("-", "_"): file for file in lines}
    files: list[str] = []
    for name in names:
        if name not in by_name:
            raise LabError(f"the guest's kernel has no module {name}")
        file = by_name[name]
        files += [each for each in (*reversed(lines[file].split()), file) if each not in files]
    return files


def _load(path: Path) -> None:
    number = _FINIT_MODULE.get(platform.machine())
    if number is None:
        raise LabError(f"modules cannot be loaded on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.syscall(number, fd, b"", 0) and ctypes.get_errno() != errno.EEXIST:
            raise LabError(f"{path.name} cannot be loaded: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)
