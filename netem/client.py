"""The client program of all arms: opens sessions, asks as the load says, counts. Runs on the client's host.

    python -m netem.client < run.json

It says a line of JSON when it is ready, and waits for a line (or the end) of its input; then one each second, one when
its load is over, and its result last. Open loops count from when something was to be asked.
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

from netem.asks import asks
from netem.beside import bulk_beside
from netem.closed_loop import ClosedLoop
from netem.connects import Alone, Storm, storm_figures
from netem.loop import LONGEST, Loop, cpu, rss_mb, say
from netem.open_loop import OpenLoop
from netem.plan import Run
from netem.sessions import ways

if TYPE_CHECKING:
    import pgtrunk
    from netem.workloads import Ask

__all__ = ["main"]

_PERCENTILES = (50, 90, 95, 99, 99.9)


async def _main(run: Run) -> dict[str, Any]:
    if run.load.kind == "connect":
        return await (_alone(run) if run.arm.sessions == 1 else _storms(run))
    async with ways(run) as way:
        begin = time.perf_counter()
        async with asks(run, way) as ours, bulk_beside(run, way) as start_bulk:
            setup = time.perf_counter() - begin
            if run.warmup:
                await _loop(_warmup(run), ours.ready).play(report=False)
            # What is there now stays: the collector need not look through it while latencies are taken.
            gc.collect()
            gc.freeze()
            say({"ready": run.arm.sessions})
            await asyncio.to_thread(sys.stdin.readline)
            used = cpu()
            loop, bulk = _loop(run, ours.ready), start_bulk()
            seconds = await loop.play(report=True)
            await bulk.stop()
            say({"over": loop.done})
            result = _result(loop, seconds, setup, cpu() - used, way.trunk) | bulk.figures()
            if ours.pool is not None:
                result["sessions_used"] = ours.pool.get_size()
            return result | {"late": loop.late, "ports": ours.ports}


async def _alone(run: Run) -> dict[str, Any]:
    loop = Alone(run)
    say({"ready": 1})
    await asyncio.to_thread(sys.stdin.readline)
    used = cpu()
    seconds = await loop.play(report=True)
    say({"over": loop.done})
    return _result(loop, seconds, 0.0, cpu() - used, None) | loop.figures()


async def _storms(run: Run) -> dict[str, Any]:
    """The result is that of the cold one."""
    async with ways(run) as way:
        say({"ready": run.arm.sessions})
        await asyncio.to_thread(sys.stdin.readline)
        used = cpu()
        cold = Storm(run, way)
        seconds = await cold.play(report=True)
        used = cpu() - used
        say({"over": cold.done})
        await cold.finish()
        result = _result(cold, seconds, 0.0, used, way.trunk)
        warm = Storm(run, way)
        again = await warm.play(report=False)
        await warm.finish()
        figures = _result(warm, again, 0.0, 0.0, None) | storm_figures(warm)
        kept = ("done", "failed", "errors", "p50_ms", "p99_ms", "last_ms", "all_answered_ms", "broken")
        return result | storm_figures(cold) | {f"{key}_warm": figures[key] for key in kept}


def _loop(run: Run, asks: list[Ask]) -> Loop:
    return (ClosedLoop if run.load.kind == "closed" else OpenLoop)(run, asks)


def _warmup(run: Run) -> Run:
    load = replace(run.load, seconds=run.warmup)
    if load.kind == "ramp":
        load = replace(load, kind="fixed", rate=load.rate / 10)
    return replace(run, load=load)


def _result(
    loop: Loop, seconds: float, setup: float, used: float, trunk: pgtrunk.StreamManager | None
) -> dict[str, Any]:
    histogram = HdrHistogram(1, LONGEST, 3)
    for latency in (*loop.latencies, *loop.waited):
        histogram.record_value(min(latency, LONGEST))
    percentiles = {f"p{each:g}_ms": histogram.get_value_at_percentile(each) / 1000 for each in _PERCENTILES}
    too_late = loop.run.thresholds.too_late_ms * 1000
    return {
        "asked": loop.asked,
        "done": loop.done,
        "failed": loop.failed,
        "errors": loop.errors,
        "unanswered": loop.unanswered,
        "too_late": sum(latency > too_late for latency in loop.latencies) if too_late else 0,
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
        "trunk": None if trunk is None else asdict(trunk.stats()),
        "histogram": histogram.encode().decode(),
    }


def main() -> int:
    run = Run.from_json(json.loads(sys.stdin.readline()))
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
