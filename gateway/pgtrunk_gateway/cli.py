"""``pgtrunk-gateway``: reads the configuration, runs a gateway or several, ends with a message and an exit code.

Exit codes, as PgBouncer's: 0 ended as asked, by a signal or the console; 1 the command line or the configuration is
wrong, or a front cannot open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import ssl
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from pgtrunk.errors import PgtrunkError
from pgtrunk_gateway.config.load import Loaded, load
from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet.heritage import Heritage
from pgtrunk_gateway.fleet.supervisor import Supervisor, worker_count
from pgtrunk_gateway.gateway import Gateway
from pgtrunk_gateway.logs import LogOutput
from pgtrunk_gateway.notify import Notifier
from pgtrunk_gateway.privileges import assume, check_program
from pgtrunk_gateway.reloading import OpenLog, log_remarks
from pgtrunk_gateway.running import run
from pgtrunk_gateway.signals import catch_signals, serve_until_stopped, unless_stopped

__all__ = ["main"]

log = logging.getLogger(__name__)

_NO_DAEMON = "-d is not supported: let a service manager run it (systemd: Type=notify), or a shell, with &"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        loaded = _load(arguments)
        open_log = _logging(arguments)
        open_log(loaded.config).install()
        log_remarks(loaded)
        if arguments.reboot and run(_take_over(loaded, open_log, arguments)):
            return 0
        with _pidfile(loaded):
            workers = worker_count(loaded.config)
            if workers == 1:
                run(_serve(loaded, open_log))
            else:
                run(_supervise(loaded, workers, open_log, arguments))
    except PgtrunkError as error:
        print(f"pgtrunk-gateway: {error}", file=sys.stderr)
        return 1
    return 0


class _Parser(argparse.ArgumentParser):
    """Ends with the exit code of PgBouncer where the command line is wrong."""

    def error(self, message: str) -> NoReturn:
        print(f'{self.prog}: {message}\nTry "{self.prog} --help" for more information.', file=sys.stderr)
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pgtrunk-gateway",
        description="Pools sessions from QUIC, TCP and unix sockets onto few Postgres backends.",
        epilog="Signals: SIGTERM waits for clients, SIGINT for transactions, SIGQUIT for nothing; twice: now. "
        "SIGHUP reads the configuration again, SIGUSR1 pauses, SIGUSR2 resumes.",
    )
    parser.add_argument("ini", metavar="gateway.ini", help="the configuration, in PgBouncer's format")
    parser.add_argument("-q", "--quiet", action="store_true", help="log to the logfile alone, not to stderr")
    parser.add_argument("-u", "--user", metavar="NAME", help="become this user first; goes before the key user")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more; may be given several times")
    parser.add_argument("-V", "--version", action="version", version=f"pgtrunk-gateway {version('pgtrunk-gateway')}")
    parser.add_argument("-R", "--reboot", action="store_true", help="take over from the gateway that runs, of workers")
    # Options of PgBouncer's, for whoever gives them out of habit.
    parser.add_argument("-d", "--daemon", action=_Refuse, help=argparse.SUPPRESS, words=_NO_DAEMON)
    return parser


class _Refuse(argparse.Action):
    """An option that only says why there is none."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, words: str, **other: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **other)
        self._words = words

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(self._words)


def _load(arguments: argparse.Namespace) -> Loaded:
    loaded = load(arguments.ini)
    user = arguments.user or loaded.config.user
    if user is None:
        return loaded
    assume(user)
    # Again, with that user's eyes: what it cannot read is found now and not at the first reload.
    loaded = load(arguments.ini)
    check_program(user)
    return loaded


def _logging(arguments: argparse.Namespace) -> OpenLog:
    """How to open the log of a configuration, given what the command line says about it."""
    return lambda config: LogOutput(config.logfile, quiet=arguments.quiet, verbose=config.verbose + arguments.verbose)


async def _serve(loaded: Loaded, open_log: OpenLog) -> None:
    signals = catch_signals()
    notifier = Notifier(os.environ)
    async with Gateway(loaded, open_log) as gateway:
        _log_start()
        notifier.ready()
        await serve_until_stopped(gateway, signals, notifier)


async def _supervise(
    loaded: Loaded, workers: int, open_log: OpenLog, arguments: argparse.Namespace, heritage: Heritage | None = None
) -> None:
    signals = catch_signals()
    notifier = Notifier(os.environ)
    if heritage is not None:
        notifier.took_over(os.getpid())
    supervisor = Supervisor(
        loaded, workers, open_log, quiet=arguments.quiet, verbose=arguments.verbose, heritage=heritage
    )
    supervisor.changeover.moved = notifier.moved
    try:
        if await unless_stopped(supervisor.start(), signals):
            with _held(loaded) if heritage is not None else contextlib.nullcontext():
                _log_start(workers)
                notifier.ready()
                await serve_until_stopped(supervisor, signals, notifier)
    finally:
        await supervisor.close()


async def _take_over(loaded: Loaded, open_log: OpenLog, arguments: argparse.Namespace) -> bool:
    """Serves to the end, behind the gateway that runs -> False: none does, or none of workers."""
    heritage = await Heritage.claim(loaded)
    if heritage is None:
        log.info("-R: no gateway of several workers runs here; starting as always")
        return False
    try:
        await _supervise(loaded, worker_count(loaded.config), open_log, arguments, heritage)
    finally:
        await heritage.close()
    return True


def _log_start(workers: int = 1) -> None:
    """In PgBouncer's words, with what a report of a fault has to name."""
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    log.info(
        "process up: pgtrunk-gateway %s, Python %s (%s), tls: %s%s",
        version("pgtrunk-gateway"), platform.python_version(), loop, ssl.OPENSSL_VERSION,
        f", workers: {workers}" if workers > 1 else "",
    )  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        log.warning("running as root, which is not needed: set the key user, or start with -u")


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
    except OSError as error:
        raise ConfigError(f'pidfile: cannot write "{path}": {error.strerror}') from error
    with _held(loaded):
        yield


@contextlib.contextmanager
def _held(loaded: Loaded) -> Iterator[None]:
    """Writes the pid, whoever's is there. A gateway that was taken over leaves the file alone at its end."""
    path = loaded.config.pidfile
    if not path:
        yield
        return
    try:
        # Over what is there, which may be the pid of the one before: nobody who reads it shall find nothing.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(descriptor, os.write(descriptor, b"%d\n" % os.getpid()))
        finally:
            os.close(descriptor)
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
