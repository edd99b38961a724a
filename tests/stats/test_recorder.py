"""The end of each period and its line in the log, by a clock that the test turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from pgtrunk_gateway.stats.averages import Figures
from pgtrunk_gateway.stats.recorder import Recorder, summary


class Clock:
    """An event loop's, turned by hand; one timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timer: tuple[float, Callable[[], object]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self.timer = (self.now + delay, callback)
        clock = self

        class Handle:
            def cancel(self) -> None:
                clock.timer = None

        return Handle()  # type: ignore[return-value]  # it can do all that is asked of it

    def turn(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timer is not None and self.timer[0] <= end:
            self.now, callback = self.timer
            self.timer = None
            callback()
        self.now = end


class Book:
    """A recorder with what it reads."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.period = 60.0
        self.logs = True
        self.figures = {"a": Figures()}
        self.recorder = Recorder(
            lambda: self.figures, period=lambda: self.period, logs=lambda: self.logs, clock=self.clock
        )


def test_each_period_ends_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    book = Book()
    book.recorder.start()
    book.figures = {"a": Figures(xact_count=600, query_count=1200, client_bytes=6000, xact_time=60_000)}
    book.clock.turn(59)
    assert caplog.messages == []
    book.clock.turn(1)
    (line,) = caplog.messages
    assert line == (
        "stats: 10 xacts/s, 20 queries/s, 0 client parses/s, 0 server parses/s, 0 binds/s, 0 client logins/s, "
        "in 100 B/s, out 0 B/s, xact 100 us, query 0 us, wait 0 us"
    )
    book.clock.turn(60)
    assert caplog.messages[1].startswith("stats: 0 xacts/s, 0 queries/s")


def test_the_period_and_the_log_are_asked_for_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    book = Book()
    book.recorder.start()
    book.period, book.logs = 10.0, False
    book.clock.turn(60)
    assert caplog.messages == []
    book.logs = True
    book.clock.turn(20)
    assert len(caplog.messages) == 2
    book.period = 0.0
    book.clock.turn(12)
    assert len(caplog.messages) == 5


def test_nothing_goes_on_after_the_end() -> None:
    book = Book()
    book.recorder.stop()
    book.recorder.start()
    book.recorder.stop()
    assert book.clock.timer is None


def test_the_line_has_all_that_pgbouncers_has() -> None:
    figures = Figures(**{name: at for at, name in enumerate(Figures.__slots__)})
    assert summary(figures) == (
        "stats: 1 xacts/s, 2 queries/s, 8 client parses/s, 9 server parses/s, 10 binds/s, 11 client logins/s, "
        "in 3 B/s, out 4 B/s, xact 5 us, query 6 us, wait 7 us"
    )
