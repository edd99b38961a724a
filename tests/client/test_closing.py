"""One that cannot be closed keeps nobody else open: of everything that closes many."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import Recorder, identities
from helpers.trunks import fake_trunk, open_session, turns, until
from pgtrunk.closing import close_each
from pgtrunk.manager import StreamManager
from pgtrunk.quic.racing import race
from pgtrunk.sidecar import Sidecar, UnixEndpoint
from pgtrunk.sidecar.session import Session
from pgtrunk.wire.startup import StartupMessage

STARTUP = StartupMessage(parameters={"user": "app"}).encode()


class FaultError(Exception):
    """Of ours."""


@pytest.fixture
async def told() -> list[BaseException]:
    """What the loop's exception handler hears."""
    faults: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
    return faults


def fail() -> None:
    raise FaultError


async def test_all_are_called_and_what_one_raises_is_told(told: list[BaseException]) -> None:
    done: list[int] = []
    close_each([lambda: done.append(1), fail, lambda: done.append(2)])
    assert done == [1, 2]
    assert [type(error) for error in told] == [FaultError]
    with pytest.raises(KeyboardInterrupt):
        close_each([_interrupt])


def _interrupt() -> None:
    raise KeyboardInterrupt


async def test_connections_of_a_trunk(told: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrunk.trunk.CLOSE_TIMEOUT", 0.01)
    async with fake_trunk(connections=2, streams=1) as (trunk, gateway):
        for _ in range(2):
            await open_session(trunk)
        first, second = gateway.connections
        monkeypatch.setattr(first, "close", fail)
        await trunk.close()
        assert second.closed.is_set()
        assert first.was_stopped
    assert [type(error) for error in told] == [FaultError]


async def test_sessions_of_a_sidecar(told: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    failing: Iterator[bool] = iter([True, False])
    dismiss = Session.dismiss

    def dismissed(session: Session, *words: str) -> None:
        if next(failing):
            fail()
        dismiss(session, *words)

    monkeypatch.setattr(Session, "dismiss", dismissed)
    monkeypatch.setattr("pgtrunk.sidecar.server.FAREWELL_TIMEOUT", 0.1)
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        async with (
            LoopbackServer(Recorder) as server,
            StreamManager(f"127.0.0.1:{server.port}", ca_data=identities()[0].pem) as manager,
            Sidecar(manager, [UnixEndpoint(folder)]) as sidecar,
        ):
            drivers = [await asyncio.open_unix_connection(UnixEndpoint(folder).path) for _ in range(2)]
            for _, writer in drivers:
                writer.write(STARTUP)
            await until(lambda: [each.data for each in server.protocols] == [STARTUP] * 2)
            await sidecar.close()
            said = [await reader.read() for reader, _ in drivers]
            assert sorted(words[:1] for words in said) == [b"", b"E"]
            for _, writer in drivers:
                writer.close()
    assert [type(error) for error in told] == [FaultError]


async def test_those_who_have_not_won_a_race(told: list[BaseException]) -> None:
    class Runner:
        is_heard = False

        def __init__(self, number: int) -> None:
            self.number = number
            self.is_discarded = False

        async def open(self, deadline: float) -> None:
            await go.wait()

        def discard(self) -> None:
            self.is_discarded = True
            if self.number == 1:
                fail()

    go = asyncio.Event()
    runners = [Runner(number) for number in range(3)]
    left: list[Any] = list(runners)
    deadline = asyncio.get_running_loop().time() + 20
    racing = asyncio.create_task(
        race(lambda: left.pop(0) if left else None, lambda each: each, lambda _: 0.0, deadline=deadline)
    )
    await turns()
    go.set()
    outcome = await racing
    assert outcome.winner is not None
    assert [each.is_discarded for each in runners] == [False, True, True]
    assert [type(error) for error in told] == [FaultError]
