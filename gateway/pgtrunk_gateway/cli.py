"""``pgtrunk-gateway``: reads the configuration, runs one gateway, ends with a message and an exit code.

Exit codes: 0 ended by a signal as asked; 1 the configuration is wrong or a front cannot open; 2 the command line is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Coroutine, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway import logs
from pgtrunk_gateway.config.load import Loaded, load
from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.gateway import Gateway
from pgtrunk_gateway.stopping import catch_signals, serve_until_stopped

__all__ = ["main"]

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        loaded = load(arguments.ini)
        logs.setup(loaded.config.logfile, quiet=arguments.quiet, verbose=loaded.config.verbose + arguments.verbose)
        for remark in loaded.remarks:
            log.log(logging.WARNING if remark.serious else logging.INFO, "%s", remark)
        with _pidfile(loaded):
            _run(_serve(loaded))
    except PgtrunkError as error:
        print(f"pgtrunk-gateway: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pgtrunk-gateway",
        description="Pools sessions from QUIC, TCP and unix sockets onto few Postgres backends.",
        epilog="Signals: SIGTERM waits for clients, SIGINT for transactions, SIGQUIT for nothing; twice: now.",
    )
    parser.add_argument("ini", metavar="gateway.ini", help="the configuration, in PgBouncer's format")
    parser.add_argument("-q", "--quiet", action="store_true", help="log to the logfile alone, not to stderr")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more; may be given several times")
    parser.add_argument("-V", "--version", action="version", version=f"pgtrunk-gateway {version('pgtrunk')}")
    return parser


async def _serve(loaded: Loaded) -> None:
    signals = catch_signals()
    async with Gateway(loaded) as gateway:
        await serve_until_stopped(gateway, signals)


def _run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


@contextlib.contextmanager
def _pidfile(loaded: Loaded) -> Iterator[None]:
    """Holds the pid while the gateway runs; refuses where another one is running."""
    path = loaded.config.pidfile
    if not path:
        yield
        return
    try:
        running = _running(path)
        if running is not None:
            raise loaded.error("pidfile", f'"{path}" says that pid {running} runs already; remove it if that is not so')
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as error:
        raise ConfigError(f'pidfile: cannot write "{path}": {error.strerror}') from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            # Unless somebody removed it, and it is the next one's by now.
            if _content(path) == os.getpid():
                os.unlink(path)


def _content(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return None


def _running(path: str) -> int | None:
    pid = _content(path)
    if pid is None or pid <= 0 or pid == os.getpid():
        # Our own: left by the one before, where every one has the same, as in a container.
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        # It runs, and is somebody else's.
        pass
    return pid
