"""A copy of PgBouncer's tests that they can be run in: the checkout is only read, and may belong to anybody.

Beside their folder they look for two files of a build, of which nothing else is needed: the header that names the
longest password, and what the build supports.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import ConformanceError

__all__ = ["copy_suite", "suite_version"]

_HEADER = "include/bouncer.h"
_HEADER_STUB = "#define MAX_PASSWORD 996\n"
# What the tests ask a build for; LDAP would need a server that is not here.
_BUILD = "ldap_support = no\ntls_support = yes\n"


# By file and name: pytest-xdist loses paths to single tests, since the suite changes the folder, and -k matches parts.
_CONFTEST = """\
WANTED = {wanted!r}


def pytest_collection_modifyitems(config, items):
    others = [item for item in items if f"{{item.path.name}}::{{item.originalname}}" not in WANTED]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
"""


def copy_suite(checkout: Path, target: Path, tests: Sequence[str] = ()) -> None:
    """Makes ``target``, with the tests and what they look for; only ``tests`` run there, or all of them if it is empty.
    Raises :class:`ConformanceError` where ``checkout`` is no checkout of PgBouncer, or lacks one of the tests."""
    folder = checkout / "test"
    if not (folder / "utils.py").is_file() or not (checkout / "pyproject.toml").is_file():
        raise ConformanceError(f"{checkout} is no checkout of PgBouncer: it has no test/utils.py or no pyproject.toml")
    missing = [name for name in tests if not _has(folder, name)]
    if missing:
        raise ConformanceError(f"{checkout} is of another version: it lacks {', '.join(missing)}")
    target.mkdir()
    shutil.copytree(folder, target / "test", ignore=shutil.ignore_patterns("__pycache__", "*.log", "TestCA*"))
    shutil.copy2(checkout / "pyproject.toml", target)
    (target / "include").mkdir()
    header = checkout / _HEADER
    (target / _HEADER).write_text(header.read_text() if header.is_file() else _HEADER_STUB)
    (target / "config.mak").write_text(_BUILD)
    if tests:
        (target / "conftest.py").write_text(_CONFTEST.format(wanted=frozenset(tests)))


def _has(folder: Path, name: str) -> bool:
    file, _, test = name.partition("::")
    return (folder / file).is_file() and f"def {test}(" in (folder / file).read_text()


def suite_version(checkout: Path) -> str:
    """What git calls the checkout, or the version that its changelog begins with."""
    try:
        described = subprocess.run(
            ["git", "describe", "--tags", "--always"], cwd=checkout, capture_output=True, text=True, check=True
        )
        return described.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        news = checkout / "NEWS.md"
        found = re.search(r"PgBouncer (\d+\.\d+\.\d+)", news.read_text()) if news.is_file() else None
        return found[1] if found else "unknown"
