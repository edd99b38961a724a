"""The log looks like PgBouncer's, and goes where it should."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pgtrunk_gateway import logs
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z+\-0-9]+ \[(?P<pid>\d+)\] (?P<level>[A-Z]+) (?P<message>.*)", re.DOTALL
)
log = logging.getLogger("pgtrunk_gateway.session")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, logs.OURS)]
    levels = [logger.level for logger in loggers]
    yield
    logs._remove(root)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def format_record(message: str, level: int = logging.INFO, **attributes: object) -> str:
    record = logging.LogRecord("x", level, __file__, 1, message, None, None)
    vars(record).update(attributes)
    return logs.PgBouncerFormatter().format(record)


def test_line() -> None:
    message = "C-1c: shop/app@192.0.2.7:40312 closing because: query_wait_timeout (age=9s)"
    match = LINE.fullmatch(format_record(message))
    assert match is not None
    assert match["pid"] == str(os.getpid())
    assert match["message"] == message


def test_time_is_local_and_cut_to_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert format_record("x", created=1796055816.4629).startswith("2026-11-30 16:23:36.462 UTC [")
    assert format_record("x", created=1796055816.9999).startswith("2026-11-30 16:23:36.999 UTC [")
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("level", "tag"),
    [
        (logging.CRITICAL, "FATAL"),
        (logging.ERROR, "ERROR"),
        (logging.WARNING, "WARNING"),
        (logging.INFO, "LOG"),
        (logging.DEBUG, "DEBUG"),
        (logs.NOISE, "NOISE"),
        (logging.INFO + 1, "WARNING"),
        (99, "FATAL"),
    ],
)
def test_levels(level: int, tag: str) -> None:
    match = LINE.fullmatch(format_record("x", level))
    assert match is not None
    assert match["level"] == tag


def test_further_lines_are_indented_and_controls_shown() -> None:
    match = LINE.fullmatch(format_record('user "a\nb\x1b[2J\r"\n\n'))
    assert match is not None
    assert match["message"] == 'user "a\n\tb\\x1b[2J\\x0d"'


def test_an_exception_follows_its_message() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        text = format_record("failed", logging.ERROR, exc_info=sys.exc_info())
    assert " ERROR failed\n\tTraceback (most recent call last):\n\t" in text
    assert text.endswith("\n\tValueError: why")


@pytest.mark.parametrize(
    ("verbose", "levels"),
    [
        (0, {"LOG", "WARNING"}),
        (1, {"DEBUG", "LOG", "WARNING"}),
        (2, {"NOISE", "DEBUG", "LOG", "WARNING"}),
        (3, {"NOISE", "DEBUG", "LOG", "WARNING"}),
    ],
)
def test_verbosity(verbose: int, levels: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(None, verbose=verbose)
    for level in (logs.NOISE, logging.DEBUG, logging.INFO, logging.WARNING):
        log.log(level, "x")
    assert {line.split()[4] for line in capsys.readouterr().err.splitlines()} == levels


@pytest.mark.parametrize(("verbose", "seen"), [(0, False), (2, False), (3, True)])
def test_libraries_are_quiet(verbose: int, seen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(None, verbose=verbose)
    logging.getLogger("quic").info("chatter")
    logging.getLogger("asyncio").warning("trouble")
    err = capsys.readouterr().err
    assert ("chatter" in err) is seen
    assert "WARNING trouble" in err


@pytest.mark.parametrize(("quiet", "on_stderr"), [(False, True), (True, False)])
def test_logfile(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool, on_stderr: bool) -> None:
    logfile = tmp_path / "gateway.log"
    logfile.write_text("before\n")
    logs.setup(str(logfile), quiet=quiet)
    log.info("hällo")
    assert logfile.read_text(encoding="utf-8").splitlines()[1].endswith("LOG hällo")
    assert ("LOG hällo" in capsys.readouterr().err) is on_stderr


def test_quiet_alone_does_not_silence_everything(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(None, quiet=True)
    log.info("x")
    assert "LOG x" in capsys.readouterr().err


def test_a_further_setup_opens_the_file_anew(tmp_path: Path) -> None:
    logfile = tmp_path / "gateway.log"
    logs.setup(str(logfile), quiet=True)
    log.info("one")
    logfile.rename(tmp_path / "rotated.log")
    logs.setup(str(logfile), quiet=True)
    log.info("two")
    assert "one" not in logfile.read_text()
    assert len(logfile.read_text().splitlines()) == 1


def test_a_file_that_cannot_be_opened_leaves_the_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(None)
    with pytest.raises(ConfigError) as caught:
        logs.setup(str(tmp_path))
    assert str(caught.value) == f'logfile: cannot open "{tmp_path}": Is a directory'
    log.info("still here")
    assert "LOG still here" in capsys.readouterr().err
