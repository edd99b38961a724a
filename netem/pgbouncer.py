"""Where PgBouncer is."""

from __future__ import annotations

import os
import shutil

__all__ = ["program"]


def program() -> str | None:
    """The program: $PGBOUNCER, or where Debian has it. None: it is not here."""
    return os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")
