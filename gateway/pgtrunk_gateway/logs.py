"""The gateway's log, line for line as PgBouncer writes it, on top of the `logging` module.

    2026-11-30 16:23:36.462 UTC [4711] LOG C-1c: shop/app@192.0.2.7:40312 closing because: query_wait_timeout (age=9s)

Levels are PgBouncer's: CRITICAL is FATAL, INFO is LOG, and NOISE is below DEBUG. The prefix of a session or a backend
(`C-...`, `S-...`) is part of the message, made by whoever knows it. All loggers end up here, those of libraries
included, of which only warnings pass unless `verbose` is 3.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NOISE", "LogOutput", "PgBouncerFormatter", "setup"]

NOISE = 5
"""Level of what happens per packet or per message."""

TAGS = {
    NOISE: "NOISE",
    logging.DEBUG: "DEBUG",
    logging.INFO: "LOG",
    logging.WARNING: "WARNING",
    logging.ERROR: "ERROR",
}
VERBOSITY = (logging.INFO, logging.DEBUG, NOISE)
OURS = ("pgtrunk", "pgtrunk_gateway")
# What clients send gets into messages (names of users and databases): nothing of it may move a terminal's cursor.
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\t\n"}

_installed: list[logging.Handler] = []


class PgBouncerFormatter(logging.Formatter):
    """`<date> <time>.<ms> <zone> [<pid>] <level> <message>`, in local time; further lines are indented by a tab."""

    def format(self, record: logging.LogRecord) -> str:
        message = "\n".join(_parts(self, record)).translate(CONTROLS)
        if "\n" in message:
            message = message.rstrip().replace("\n", "\n\t")
        return f"{_timestamp(record)} [{record.process}] {_tag(record.levelno)} {message}"


class LogOutput:
    """Where all logging is to go: stderr and, where one is named, a file that is appended to.

    `quiet` (-q) takes stderr away, unless there would be no log left. `verbose` is 0 for LOG and graver, 1 with DEBUG,
    2 with NOISE, 3 with what libraries say. The file is opened here, and used from `install` on, which replaces what
    was installed before: so a reload writes to a new file after a rotation. Or it is closed by `discard`.

    :raises ConfigError: the file cannot be opened.
    """

    def __init__(self, logfile: str | None, *, quiet: bool = False, verbose: int = 0) -> None:
        self._verbose = verbose
        self._handlers = [] if logfile is None else [_open(logfile)]
        if not (quiet and self._handlers):
            self._handlers.append(logging.StreamHandler(sys.stderr))

    def install(self) -> None:
        """From now on the log goes here."""
        formatter = PgBouncerFormatter()
        root = logging.getLogger()
        for handler in self._handlers:
            handler.setFormatter(formatter)
            root.addHandler(handler)
        _remove(root)
        _installed.extend(self._handlers)
        logging.addLevelName(NOISE, "NOISE")
        level = VERBOSITY[min(self._verbose, len(VERBOSITY) - 1)]
        root.setLevel(level if self._verbose > len(VERBOSITY) - 1 else logging.WARNING)
        for name in OURS:
            logging.getLogger(name).setLevel(level)

    def discard(self) -> None:
        """It is not used after all."""
        for handler in self._handlers:
            handler.close()


def setup(logfile: str | None, *, quiet: bool = False, verbose: int = 0) -> None:
    """Sends all logging to a `LogOutput`.

    :raises ConfigError: the file cannot be opened; the log stays as it was.
    """
    LogOutput(logfile, quiet=quiet, verbose=verbose).install()


def _open(logfile: str) -> logging.Handler:
    try:
        return logging.FileHandler(logfile, encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f'logfile: cannot open "{logfile}": {reason}') from error


def _remove(root: logging.Logger) -> None:
    while _installed:
        handler = _installed.pop()
        root.removeHandler(handler)
        handler.close()


def _parts(formatter: logging.Formatter, record: logging.LogRecord) -> Iterator[str]:
    yield record.getMessage()
    if record.exc_info:
        yield formatter.formatException(record.exc_info)
    if record.stack_info:
        yield formatter.formatStack(record.stack_info)


def _timestamp(record: logging.LogRecord) -> str:
    moment = time.localtime(record.created)
    # Cut, not rounded: a rounded 999.7 ms would need the next second.
    milliseconds = int(record.created % 1 * 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', moment)}.{milliseconds:03d} {moment.tm_zone}"


def _tag(level: int) -> str:
    """The tag of a level; one between two has that of the graver one."""
    return next((tag for known, tag in TAGS.items() if level <= known), "FATAL")
