"""As :mod:`helpers.site`, with an older PostgreSQL: Debian's 15."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.debian_postgres import DebianPostgres, debian_program
from helpers.postgres import create_database, create_user
from helpers.site import DATABASE, PASSWORD, USER, Admin, Site
from pgtrunk.certs import create_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["site"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """In the place of the session's, where a module imports it."""
    debian_program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    try:
        certificates = create_certificates(folder / "certs", client_name=USER)
        with DebianPostgres(certificates) as server:
            asyncio.run(create_user(server, USER, PASSWORD))
            asyncio.run(create_database(server, DATABASE, owner=USER))
            admin = Admin(server)
            try:
                yield Site(server, certificates, folder, admin)
            finally:
                admin.close()
    finally:
        shutil.rmtree(folder)
