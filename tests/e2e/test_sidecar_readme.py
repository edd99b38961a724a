"""README's pages for other drivers, word for word but for names, addresses and passwords."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import pytest

from helpers.documents import README, block, section
from helpers.sidecars import ENVIRONMENT, sidecar_process
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start

PAGES: Final = {
    "psycopg": f"('{USER}',)",
    "psycopg and asyncio": "[(0,), (1,), (2,)]",
    "A sidecar inside the program": f"('{USER}',)\n(1,)",
    "SQLAlchemy": f"('{USER}',)",
    "SQLAlchemy and asyncio": f"('{USER}',)",
    "Django": f"('{USER}',)",
}
"""What each page prints."""

USE_SETTINGS: Final = """
import django
from django.conf import settings

settings.configure(DATABASES=DATABASES)
django.setup()

from django.db import connection, transaction

with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute("select current_user")
    print(cursor.fetchone())
connection.close()
"""
"""What the reader's project does with Django's settings."""


def real(code: str, gateway: LocalGateway, folder: Path) -> str:
    """A page with what it names replaced by what there is."""
    for shown, there in {
        "gw.example.net:6432": f"127.0.0.1:{gateway.quic.port}",
        "ca.pem": str(gateway.site.certificates.ca_cert),
        "/run/pgtrunk": str(folder),
        '"secret"': repr(PASSWORD),
        '"shop"': repr(DATABASE),
        "shop\n": f"{DATABASE}\n",
    }.items():
        code = code.replace(shown, there)
    return code


async def run(*command: str) -> str:
    environment = ENVIRONMENT | {"PATH": f"{EmbeddedPostgres.binary('psql').parent}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(40):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_in_python(start: Start, page: str) -> None:
    gateway = await start()
    code = block(section(README, page), "py")
    if page == "Django":
        code += USE_SETTINGS
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        script = sidecar.folder / "page.py"
        script.write_text(real(code, gateway, sidecar.folder))
        assert (await run(sys.executable, "-W", "error", str(script))).strip() == PAGES[page]


async def test_psql_and_pgbench(start: Start) -> None:
    gateway = await start()
    code = block(section(README, "psql and pgbench"), "sh")
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        said = await run("sh", "-e", "-c", real(code, gateway, sidecar.folder))
    assert f" {USER}\n" in said
    assert "transactions actually processed: 200/200" in said


async def test_the_command_is_one(tmp_path: Path) -> None:
    """All of its options exist: it gets as far as the certificate that is not there."""
    words = block(section(README, "Every other driver"), "sh").split()
    assert words[:2] == ["pgtrunk", "sidecar"]
    command = [sys.executable, "-m", "pgtrunk.cli", *words[1:]]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(40):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"ca.pem" in said
