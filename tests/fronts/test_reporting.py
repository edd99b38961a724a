"""What clients are told of their queries: whom, how often, and when nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pgtrunk.quic.control import WANTS_STATS, Hello, Stage, Stats
from pgtrunk_gateway.fronts import reporting
from pgtrunk_gateway.fronts.reporting import KEPT, StageReports, report
from pgtrunk_gateway.stats.stages import STAGES, StageTimes

if TYPE_CHECKING:
    from pgtrunk.quic.control import ControlFrame
    from pgtrunk.quic.driver import ConnectionDriver


class Control:
    """A control stream that keeps what is said on it."""

    def __init__(self, hello: Hello | None, *, agreed: bool = True) -> None:
        self.hello = hello
        self.agreed = agreed
        self.said: list[ControlFrame] = []

    def send(self, frame: ControlFrame) -> None:
        self.said.append(frame)


def driver(hello: Hello | None = Hello(WANTS_STATS), *, agreed: bool = True) -> Any:  # noqa: B008 - frozen
    return SimpleNamespace(control=Control(hello, agreed=agreed), extra={"sockname": None})


def begun(connection: ConnectionDriver) -> StageTimes:
    times = connection.extra[STAGES] = StageTimes()
    return times


def test_what_there_was_is_told_once() -> None:
    it = driver()
    times = begun(it)
    executed, waited = times.executions.append, times.waits.append
    report(it)
    assert it.control.said == []
    executed(0.02)
    executed(0.02)
    waited(1.5)
    report(it)
    report(it)
    assert it.control.said == [Stats(Stage.of([1.5]), Stage.of([0.02, 0.02]))]
    executed(0.1)
    report(it)
    assert it.control.said[1:] == [Stats(execution=Stage.of([0.1]))]


@pytest.mark.parametrize("features", [0, ~WANTS_STATS & 0xFFFFFFFF])
def test_who_does_not_want_it_is_not_told_and_nothing_is_kept_for_it(features: int) -> None:
    it = driver(Hello(features))
    begun(it).executions.append(1.0)
    report(it)
    assert it.control.said == []
    assert not it.extra[STAGES]


def test_who_has_not_said_yet_is_told_later() -> None:
    it = driver(None)
    begun(it).executions.extend([1.0] * KEPT)
    report(it)
    assert not it.extra[STAGES], "who never says it does not fill the memory"
    it.extra[STAGES].executions.append(1.0)
    report(it)
    it.control.hello = Hello(WANTS_STATS | 6)
    report(it)
    assert it.control.said == [Stats(execution=Stage.of([1.0]))]


async def test_reports_go_on_while_there_are_connections_and_cost_nothing_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporting, "INTERVAL", 0.001)
    reports = StageReports()
    connections = [driver(), driver(), driver(agreed=False)]
    reports.drivers = lambda: connections
    assert reports._timer is None
    for each in connections:
        reports.begin(each)
        reports.begin(each)
    assert STAGES not in connections[2].extra
    async with asyncio.timeout(20):
        for _ in range(2):
            connections[0].extra[STAGES].executions.append(0.1)
            said = len(connections[0].control.said)
            while len(connections[0].control.said) == said:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert (len(connections[0].control.said), connections[1].control.said) == (2, [])
        connections.clear()
        while reports._timer is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        connections.append(driver())
        reports.begin(connections[0])
        assert reports._timer is not None
    reports.close()
    reports.close()
    assert reports._timer is None
