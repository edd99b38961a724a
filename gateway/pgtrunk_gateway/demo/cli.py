"""``pgtrunk-demo``, which is ``make run``: everything started, some thousand queries over QUIC, a table, and then it
stays up to be tried, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import pgtrunk
from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway.demo import interrupts, load
from pgtrunk_gateway.demo.site import Site

__all__ = ["main"]

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 with a message where something could not be started, 130 after an early Ctrl-C."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _terminated)
    console = Console()
    try:
        with Site() as site:
            _start(console, site)
            interrupts.run(_demonstrate(console, site, arguments))
            if not arguments.once:
                _stay(console, site)
        if not arguments.once:
            console.print("stopped; all files are removed")
    except PgtrunkError as error:
        print(f"pgtrunk-demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped and removed")
        return _INTERRUPTED
    return 0


def _terminated(signum: int, _frame: object) -> None:
    # As an exception, so that everything is stopped on the way out.
    sys.exit(128 + signum)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pgtrunk-demo",
        description="Starts PostgreSQL, a gateway and a trunk on this machine, and sends queries over QUIC.",
    )
    parser.add_argument("--once", action="store_true", help="end after the table instead of staying up")
    parser.add_argument("--queries", type=_positive, default=20_000, help="how many (default: %(default)s)")
    parser.add_argument("--sessions", type=_positive, default=80, help="how many at a time (default: %(default)s)")
    parser.add_argument("--connections", type=_positive, default=2, help="QUIC connections (default: %(default)s)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _start(console: Console, site: Site) -> None:
    site.open_folder()
    steps: list[tuple[str, Callable[[], None]]] = [
        ("PostgreSQL 18", site.start_postgres),
        ("development certificates", site.make_certificates),
        ("gateway", site.start_gateway),
    ]
    for name, step in steps:
        with console.status(f"starting: {name}"):
            step()
        console.print(f"[green]ok[/] {name}")


async def _demonstrate(console: Console, site: Site, arguments: argparse.Namespace) -> None:
    sessions, connections = arguments.sessions, arguments.connections
    async with pgtrunk.StreamManager(
        f"127.0.0.1:{site.port}",
        ca_file=str(site.files.ca_cert),
        connections=connections,
        streams_per_connection=-(-sessions // connections),
    ) as trunk:
        dsn = f"postgresql://{site.user}:{site.password}@/{site.database}"
        async with trunk.create_pool(dsn, min_size=sessions, max_size=sessions) as pool:
            try:
                await load.prepare(pool)
                cpu = site.gateway_cpu
                with _progress(console) as progress:
                    task = progress.add_task("queries over QUIC", total=arguments.queries)
                    result = await load.run(
                        pool, sessions=sessions, queries=arguments.queries, progress=lambda: progress.advance(task)
                    )
                cpu = site.gateway_cpu - cpu
                _table(console, result, trunk.stats(), await site.backends(), cpu)
            except BaseException:
                # Closing it would wait for what is under way, and nobody waits for that any more.
                pool.terminate()
                raise
    site.check()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def _table(
    console: Console, result: load.LoadResult, stats: pgtrunk.TrunkStats, backends: int, gateway_cpu: float
) -> None:
    table = Table(title="point selects with asyncpg, over QUIC, on one machine", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("queries", f"{result.queries:,}")
    table.add_row("queries/s", f"{result.rate:,.0f}")
    table.add_row("p50", f"{result.percentile(50):.1f} ms")
    table.add_row("p99", f"{result.percentile(99):.1f} ms")
    table.add_row("sessions", f"{stats.streams_in_use}")
    table.add_row("QUIC connections", f"{stats.connections_ready}")
    table.add_row("streams opened", f"{stats.streams_opened}")
    table.add_row("PostgreSQL backends", f"{backends}")
    if gateway_cpu:
        table.add_row("gateway CPU per query", f"{gateway_cpu / result.queries * 1e6:.0f} us")
    console.print(table)


def _stay(console: Console, site: Site) -> None:
    try:
        _say_how_to_connect(console, site)
        site.wait()
    except KeyboardInterrupt:
        console.print("stopping ...")


def _say_how_to_connect(console: Console, site: Site) -> None:
    console.print(
        f"""
The gateway stays up: port {site.port}, TCP for every client, UDP (QUIC) for pgtrunk's. Its files are in {site.folder}.

[bold]psql[/]
  PGPASSWORD={site.password} psql -h 127.0.0.1 -p {site.port} -U {site.user} {site.database}

[bold]Python[/]
  import asyncio, pgtrunk
  async def main():
      async with pgtrunk.StreamManager("127.0.0.1:{site.port}", ca_file="{site.files.ca_cert}") as trunk:
          connection = await trunk.connect("postgresql://{site.user}:{site.password}@/{site.database}")
          print(await connection.fetchval("select count(*) from accounts"))
          await connection.close()
  asyncio.run(main())

Ctrl-C stops everything and removes the files.""",
        highlight=False,
        soft_wrap=True,
    )
