"""The client program of all arms: opens sessions, asks as the load says, counts. Runs on the client's host.

    python -m netem.client < run.json

It says a line of JSON each second, and its result last. Open loops count from when something was to be asked.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hdrh.histogram import HdrHistogram

from netem.closed_loop import ClosedLoop
from netem.loop import LONGEST, Loop, cpu, rss_mb, say
from netem.open_loop import OpenLoop
from netem.plan import Run
from netem.sessions import opened, ways
from netem.workloads import Ask, connecting, prepare

if TYPE_CHECKING:
    import asyncpg

    import pgtrunk

__all__ = ["main"]


async def _main(run: Run) -> dict[str, Any]:
    async with ways(run) as (connect, trunk):
        begin = time.perf_counter()
        is_connect = run.workload.kind == "connect"
        async with opened(connect, 0 if is_connect else run.arm.sessions) as connections:
            setup = time.perf_counter() - begin
            if is_connect:
                asks = [connecting(connect)] * run.arm.sessions
            else:
                asks = list(await asyncio.gather(*(_first(connection, run) for connection in connections)))
            if run.warmup:
                await _loop(_warmup(run), asks).play(report=False)
            # What is there now stays: the collector need not look through it while latencies are taken.
            gc.collect()
            gc.freeze()
            say({"ready": run.arm.sessions})
            used = cpu()
            loop = _loop(run, asks)
            seconds = await loop.play(report=True)
            return _result(loop, seconds, setup, cpu() - used, trunk)


def _loop(run: Run, asks: list[Ask]) -> Loop:
    return (ClosedLoop if run.load.kind == "closed" else OpenLoop)(run, asks)


async def _first(connection: asyncpg.Connection, run: Run) -> Ask:
    """What the session asks, prepared and asked once.

    asyncpg prepares with Flush, without Sync: PgBouncer's server stays with this session until it asks something. Were
    all sessions to prepare first, those without a server would wait for ever.
    """
    ask = await prepare(connection, run.workload)
    await ask(0)
    return ask


def _warmup(run: Run) -> Run:
    load = replace(run.load, seconds=run.warmup)
    if load.kind == "ramp":
        load = replace(load, kind="fixed", rate=load.rate / 10)
    return replace(run, load=load)


def _result(
    loop: Loop, seconds: float, setup: float, used: float, trunk: pgtrunk.StreamManager | None
) -> dict[str, Any]:
    histogram = HdrHistogram(1, LONGEST, 3)
    for latency in loop.latencies:
        histogram.record_value(latency)
    percentiles = {f"p{each:g}_ms": histogram.get_value_at_percentile(each) / 1000 for each in (50, 90, 99, 99.9)}
    return {
        "asked": loop.asked,
        "done": loop.done,
        "failed": loop.failed,
        "errors": loop.errors,
        "seconds": round(seconds, 3),
        "per_second": round(loop.done / seconds, 1),
        "mean_ms": round(histogram.get_mean_value() / 1000, 3),
        **percentiles,
        "max_ms": histogram.get_max_value() / 1000,
        "sessions": loop.run.arm.sessions,
        "sessions_used": len(loop.used),
        "setup_s": round(setup, 3),
        "client_cpu_s": round(used, 3),
        "client_cpu_us": round(used / max(1, loop.done) * 1e6, 1),
        "client_rss_mb": rss_mb(),
        "trunk": None if trunk is None else {key: repr(value) for key, value in asdict(trunk.stats()).items()},
        "histogram": histogram.encode().decode(),
    }


def main() -> int:
    run = Run.from_json(json.load(sys.stdin))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    del soft
    try:
        import uvloop
    except ImportError:
        result = asyncio.run(_main(run))
    else:
        result = uvloop.run(_main(run))
    say({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
