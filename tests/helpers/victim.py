"""A client in a process of its own, which a test kills: `python victim.py WAY HOST PORT CA SCENARIO`.

It logs in, does what the scenario says, prints "there", and does nothing more until it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import asyncpg

from pgtrunk import StreamManager

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Way

__all__ = ["victim"]


@contextlib.contextmanager
def victim(gateway: LocalGateway, way: Way, scenario: str) -> Iterator[subprocess.Popen[str]]:
    """The process; it is there for sure once it has printed a line."""
    from helpers.site import DATABASE, PASSWORD, USER

    address = gateway.address(way)
    port = gateway.quic.port if way == "quic" else address["port"]
    host = "127.0.0.1" if way == "quic" else address["host"]
    arguments = [way, host, str(port), str(gateway.site.certificates.ca_cert), scenario, USER, PASSWORD, DATABASE]
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def _main(way: str, host: str, port: str, ca: str, scenario: str, user: str, password: str, name: str) -> None:
    login: dict[str, Any] = {"user": user, "password": password, "database": name, "timeout": 20}
    if way == "quic":
        async with StreamManager(f"{host}:{port}", ca_file=ca) as trunk:
            await _SCENARIOS[scenario](await trunk.connect(**login))
    else:
        await _SCENARIOS[scenario](await asyncpg.connect(host=host, port=int(port), ssl=False, **login))


async def _stay() -> None:
    sys.stdout.write("there\n")
    sys.stdout.flush()
    await asyncio.sleep(600)


async def _idle(session: asyncpg.Connection) -> None:
    await _stay()


async def _lock(session: asyncpg.Connection) -> None:
    await session.transaction().start()
    await session.execute("UPDATE victims SET n = n + 1")
    await _stay()


async def _query(session: asyncpg.Connection) -> None:
    running = asyncio.ensure_future(session.execute("UPDATE victims SET n = n + 1; SELECT pg_sleep(600)"))
    await asyncio.sleep(0)
    await asyncio.gather(running, _stay())


async def _copy(session: asyncpg.Connection) -> None:
    async def rows() -> AsyncIterator[bytes]:
        yield b"1000\n" * 1000
        await _stay()

    await session.copy_to_table("victims", source=rows())


async def _read(session: asyncpg.Connection) -> None:
    async def stop(data: bytes) -> None:
        await _stay()

    await session.copy_from_query("SELECT repeat('x', 1000) FROM generate_series(1, 100000)", output=stop)


_SCENARIOS: dict[str, Callable[[asyncpg.Connection], Awaitable[None]]] = {
    "idle": _idle,
    "lock": _lock,
    "query": _query,
    "copy": _copy,
    "read": _read,
}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(*sys.argv[1:]))
