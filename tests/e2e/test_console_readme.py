"""README's commands for the console, word for word but for the address and the database, as a shell would run them."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from helpers.documents import README, block, section
from helpers.processes import run_program
from helpers.site import DATABASE

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start

ADDRESS = ["-h", "/run/pgtrunk", "-p", "6432", "-U", "pgtrunk", "pgtrunk"]


async def test_the_commands_run(start: Start) -> None:
    gateway = await start(databases={DATABASE: "host=127.0.0.1", "shop": "host=127.0.0.1"})
    commands = block(section(README, "The console"), "sh").splitlines()
    outputs = [await asyncio.to_thread(run, gateway, command) for command in commands]
    told = ("SHOW", "cl_active", "rtt_us", "default_pool_size=30", "RELOAD", "RESUME")
    for output, words in zip(outputs, told, strict=True):
        assert words in output


def run(gateway: LocalGateway, command: str) -> str:
    program, *arguments = shlex.split(command)
    assert arguments[: len(ADDRESS)] == ADDRESS
    login = gateway.conninfo("unix", user="pgtrunk", password=None, dbname="pgtrunk")
    return run_program(program, login, "-X", *arguments[len(ADDRESS) :]).stdout
