"""JDBC, through a sidecar and over TCP. For the long run, and where a Java and the driver are installed."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.sidecars import sidecar_process
from helpers.site import DATABASE, PASSWORD, USER

if TYPE_CHECKING:
    from helpers.gateways import Start

DRIVER = Path(os.environ.get("PGJDBC", "/usr/share/java/postgresql.jar"))
PROGRAM = Path(__file__).parent / "jdbc" / "Conversation.java"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("javac") is None or not DRIVER.exists(),
        reason="needs a JDK and PgJDBC: default-jdk-headless, libpostgresql-jdbc-java (or PGJDBC=driver.jar)",
    ),
]


@pytest.mark.parametrize(
    "parameters", ["", "&preferQueryMode=simple", "&prepareThreshold=1", "&options=-c%20work_mem%3D7MB"]
)
@pytest.mark.parametrize("way", ["sidecar", "tcp"])
async def test_a_conversation(start: Start, way: str, parameters: str) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        port = sidecar.port if way == "sidecar" else gateway.port
        words = [str(port), DATABASE, USER, PASSWORD, parameters]
        program = await asyncio.create_subprocess_exec(
            "java", "-cp", str(DRIVER), str(PROGRAM), *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(50):
            said, _ = await program.communicate()
    assert said.decode() == "all as expected\n"
