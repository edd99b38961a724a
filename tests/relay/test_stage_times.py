"""What a session notes of its queries' times, for a client that wants to know."""

from __future__ import annotations

from pgtrunk_gateway.relay.pacing import Pacing
from pgtrunk_gateway.stats.stages import StageTimes


async def test_a_wait_is_told_with_its_execution_and_not_before() -> None:
    """Told before, it would be laid beside what other requests took the client."""
    pacing, times = Pacing(), StageTimes()
    pacing._report_to(times)
    pacing._note_wait(1.5, times)
    assert times.take() == ([], [])
    for execution, told in ((0.25, ([1.5], [0.25])), (0.125, ([], [0.125]))):
        assert pacing._executed is not None
        pacing._executed(execution)
        assert times.take() == told


async def test_who_is_told_nothing_notes_nothing() -> None:
    pacing = Pacing()
    pacing._report_to(None)
    assert (pacing._executed, pacing._times) == (None, None)
