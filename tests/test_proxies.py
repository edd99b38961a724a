"""The gate before a server: it leaves nobody behind."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest
import uvloop

from helpers.proxies import gate


@pytest.mark.parametrize("turns", range(5))
def test_who_comes_in_the_last_moment_is_sent_away_too(turns: int) -> None:
    # asyncio's own loop loses a socket where a server is closed while it accepts.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_come(turns))
    gc.collect()


async def _come(turns: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with gate(*server.getsockname()) as proxy:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            # One that is being carried takes a turn or two to end.
            await asyncio.sleep(0.05)
            with socket.create_connection(("127.0.0.1", proxy.port)):
                for _ in range(turns):
                    await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        writer.close()
        await asyncio.sleep(0)
