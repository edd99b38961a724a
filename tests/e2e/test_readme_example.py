"""README's client example, word for word but for names and addresses, as a program of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from helpers.documents import README, block
from helpers.site import DATABASE, PASSWORD, USER

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start


async def test_the_client_example_runs(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(_example(await start()))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(script)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(40):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    assert "{'n': 3, 'square': 9}" in output
    assert USER in output.splitlines()


def _example(gateway: LocalGateway) -> str:
    code = block(README, "python")
    for shown, real in {
        "gw.example.net:6432": f"127.0.0.1:{gateway.quic.port}",
        "ca.pem": str(gateway.site.certificates.ca_cert),
        "app:secret@/shop": f"{USER}:{quote(PASSWORD)}@/{DATABASE}",
    }.items():
        assert shown in code
        code = code.replace(shown, real)
    return code
