"""When small messages are sent twice: the table of turns, the guard, and what paths remember."""

from __future__ import annotations

from math import inf

import pytest

from pgtrunk.quic.redundancy import (
    AVERAGED,
    DELTA,
    DOUBLING,
    FALLING,
    FIRST_SHARE,
    HOLD,
    LEAST_PAUSE,
    LEAST_SAMPLES,
    MIN_GAP,
    MOST_LOSS,
    RISING,
    STALE,
    STANDING,
    PathMemory,
    Paths,
    RedundancyFigures,
    Turn,
    is_slow,
    pays,
    turn_of,
)

RTT = 0.03


class Connection:
    """As much of one as a path's memory knows."""

    def __init__(self) -> None:
        self.repeats = False
        self.redundancy_figures = RedundancyFigures()


@pytest.mark.parametrize(
    ("age", "rides", "is_neighbour", "turn"),
    [
        (0.0, False, False, Turn.WAIT),
        (0.0, True, False, Turn.WAIT),
        (MIN_GAP * 0.99, True, False, Turn.WAIT),
        (MIN_GAP, False, False, Turn.WAIT),
        (MIN_GAP, False, True, Turn.WAIT),
        (MIN_GAP, True, True, Turn.WAIT),
        (MIN_GAP, True, False, Turn.GO),
        (DELTA * 0.99, True, True, Turn.WAIT),
        (DELTA * 0.99, False, False, Turn.WAIT),
        (DELTA * 0.99, True, False, Turn.GO),
        (DELTA, False, False, Turn.GO),
        (DELTA, False, True, Turn.GO),
        (DELTA, True, True, Turn.GO),
        (DELTA, True, False, Turn.GO),
        (1.0, False, True, Turn.GO),
    ],
)
def test_whose_turn_it_is(age: float, rides: bool, is_neighbour: bool, turn: Turn) -> None:
    assert turn_of(age, rides=rides, is_neighbour=is_neighbour) is turn


def test_a_timer_that_is_early_by_rounding_is_not_set_again() -> None:
    start = 1.234
    assert turn_of((start + DELTA) - start, rides=False, is_neighbour=True) is Turn.GO


@pytest.mark.parametrize(("rtt_min", "does"), [(0.0, False), (0.0119, False), (0.012, True), (0.3, True), (inf, False)])
def test_short_paths_and_unknown_ones_get_no_copies(rtt_min: float, does: bool) -> None:
    assert pays(rtt_min) is does


@pytest.mark.parametrize(("rtt", "does"), [(0.03, False), (0.0424, False), (0.0426, True), (0.2, True)])
def test_what_a_slow_round_trip_is(rtt: float, does: bool) -> None:
    assert is_slow(rtt, RTT) is does


def slow(path: PathMemory, now: float, seconds: float = 2 * STANDING, samples: int = 20) -> float:
    """A queue stands from ``now`` on; return when the last packet came out of it."""
    for each in range(samples):
        path.sample(now + seconds * each / (samples - 1), 1.0, RTT)
    return now + seconds


@pytest.mark.parametrize(
    ("seconds", "samples", "does"),
    [
        (STANDING * 0.9, 100, False),
        (STANDING, LEAST_SAMPLES - 1, False),
        (STANDING, LEAST_SAMPLES, True),
        (STANDING * 5, 100, True),
    ],
)
def test_a_queue_stands_when_all_round_trips_of_some_time_were_slow(seconds: float, samples: int, does: bool) -> None:
    path = PathMemory()
    now = slow(path, 0.0, seconds, samples)
    assert path.queue_stands is does
    path.sample(now, RTT, RTT)
    assert not path.queue_stands


def test_acknowledgements_that_are_late_now_and_then_are_no_queue() -> None:
    path = PathMemory()
    for each in range(1000):
        path.sample(each / 500, RTT if each % 20 == 0 else 1.0, RTT)
        assert not path.queue_stands


def test_slow_round_trips_with_nothing_in_between_do_not_add_up() -> None:
    path = PathMemory()
    for each in range(20):
        path.sample(each * STALE * 1.1, 1.0, RTT)
    assert not path.queue_stands


def test_a_loss_makes_all_connections_of_a_path_repeat_for_a_while() -> None:
    path, other = PathMemory(), PathMemory()
    mine, beside, far = Connection(), Connection(), Connection()
    path.join(mine, 0.0)
    path.join(beside, 0.0)
    other.join(far, 0.0)
    assert not path.is_hot(0.0)
    path.lost(5.0, 1)
    assert (mine.repeats, beside.repeats, far.repeats) == (True, True, False)
    assert path.is_hot(5.0 + HOLD - 0.001)
    assert not path.is_hot(5.0 + HOLD)
    path.lost(14.0, 1)
    assert path.is_hot(14.0 + HOLD - 0.001)
    late = Connection()
    path.join(late, 20.0)
    assert late.repeats
    too_late = Connection()
    path.join(too_late, 30.0)
    assert not too_late.repeats


def test_a_loss_out_of_a_queue_begins_nothing_and_keeps_nothing_going() -> None:
    path, connection = PathMemory(), Connection()
    path.join(connection, 0.0)
    path.lost(1.0, 5, queued=True)
    assert not connection.repeats
    assert not path.is_hot(1.0)
    path.lost(2.0, 1)
    assert connection.repeats
    path.lost(11.0, 50, queued=True)
    assert path.loss > 50 / AVERAGED
    assert path.is_hot(11.9)
    assert not path.is_hot(12.0)


def test_after_the_guard_has_spoken_copies_await_another_loss() -> None:
    path, connection = PathMemory(), Connection()
    path.join(connection, 0.0)
    path.lost(0.0, 1)
    now = slow(path, 0.1)
    assert path.is_congested(now)
    path.sample(now, RTT, RTT)
    assert not path.is_hot(now)
    connection.repeats = False  # as it does itself, then
    path.lost(now + 1, 1, queued=True)
    assert not connection.repeats
    path.lost(now + 2, 1)
    assert connection.repeats
    assert path.is_hot(now + 2)
    assert path.is_congested(now + 2), "the pause lasts"
    assert not path.is_congested(now + LEAST_PAUSE + 0.1)


def test_a_connection_that_went_quiet_is_woken_by_the_next_loss() -> None:
    path, mine = PathMemory(), Connection()
    path.join(mine, 0.0)
    path.lost(0.0, 1)
    mine.repeats = False  # it looked after HOLD
    path.lost(HOLD + 1, 1)
    assert mine.repeats


def test_a_connection_that_left_is_left_alone_and_its_figures_stay() -> None:
    path, mine = PathMemory(), Connection()
    path.join(mine, 0.0)
    mine.redundancy_figures.copies = 7
    for _ in range(2):
        path.leave(mine)
    path.lost(1.0, 1)
    assert not mine.repeats
    assert path.figures().copies == 7
    assert path.is_unused


def test_the_average_of_losses_forgets_a_clean_time() -> None:
    path = PathMemory()
    path.lost(0.0, 100)
    path.lost(HOLD + 1, 1)
    assert path.loss == pytest.approx(1 / AVERAGED)


def test_the_average_of_losses_settles_at_their_share() -> None:
    path = PathMemory()
    for packet in range(20 * AVERAGED):
        if packet % 20 == 0:
            path.lost(packet / 1000, 1)
        path.sent()
    assert path.loss == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("queue", [False, True])
def test_what_the_guard_takes_for_congestion(lossy: bool, queue: bool) -> None:
    path = PathMemory()
    path.lost(0.0, int(MOST_LOSS * AVERAGED * (1.1 if lossy else 0.9)))
    now = slow(path, 0.0) if queue else 0.0
    assert path.is_congested(now) is (lossy or queue)


def test_the_guard_pauses_longer_each_time() -> None:
    path, now, pauses = PathMemory(), 100.0, []
    for _ in range(6):
        start = now = slow(path, now)
        assert path.is_congested(now)
        path.sample(now, RTT, RTT)
        while path.is_congested(now):
            now += 0.25
        pauses.append(now - start)
    assert pauses == pytest.approx([5, 10, 20, 40, 60, 60], abs=0.3)
    now = slow(path, now + 61)
    assert path.is_congested(now)
    path.sample(now, RTT, RTT)
    assert path.is_congested(now + 4.9)
    assert not path.is_congested(now + 5.1)


def test_a_pause_counts_from_the_end_of_the_congestion() -> None:
    path = PathMemory()
    for tenth in range(200):
        path.sample(tenth / 10, 1.0, RTT)
        assert path.is_congested(tenth / 10) is (tenth >= LEAST_SAMPLES - 1)
    path.sample(19.9, RTT, RTT)
    assert path.is_congested(19.9 + 4.9)
    assert not path.is_congested(19.9 + 5.1)


def test_copies_begin_with_few_messages() -> None:
    path = PathMemory()
    path.lost(50.0, 1)
    shares = [sum(path.admits(50.0 + half / 2) for _ in range(80)) / 80 for half in range(5)]
    assert shares == pytest.approx([1 / 8, 1 / 4, 1 / 2, 1, 1], abs=0.03)


def test_a_share_that_made_a_queue_is_not_tried_again_soon() -> None:
    path = PathMemory()
    path.lost(50.0, 1)
    now = slow(path, 50.9)  # one message in two, by then
    assert path.is_congested(now)
    path.sample(now, RTT, RTT)
    shares = [path.share(now + after) for after in (LEAST_PAUSE, LEAST_PAUSE + 9, RISING, 2 * RISING, 4 * RISING)]
    most = FALLING * FIRST_SHARE * 2 ** ((now - 50.0) / DOUBLING)
    assert shares == pytest.approx([FIRST_SHARE, most * 2 ** (14 / 60), 2 * most, 4 * most, 1.0])


def test_losses_alone_do_not_lower_the_share() -> None:
    path = PathMemory()
    path.lost(50.0, AVERAGED)
    assert path.is_congested(55.0)
    assert path.share(60.0 + 4 * DOUBLING) == 1.0


def test_paths_are_told_apart_by_their_address() -> None:
    paths = Paths()
    assert paths.to("192.0.2.1") is paths.to("192.0.2.1")
    assert paths.to("192.0.2.1") is not paths.to("192.0.2.2")


def test_the_table_is_bounded_and_keeps_those_in_use() -> None:
    paths = Paths(limit=3)
    used = paths.to("used")
    used.join(Connection(), 0.0)
    oldest = paths.to("oldest")
    oldest.join(gone := Connection(), 0.0)
    gone.redundancy_figures.copies = 5
    oldest.leave(gone)
    for number in range(10):
        paths.to(str(number))
    assert len(paths) == 3
    assert paths.to("used") is used
    assert paths.to("oldest") is not oldest
    assert paths.figures().copies == 5
