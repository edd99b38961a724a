"""The search for the size of datagrams, without any datagram."""

from __future__ import annotations

import random

import pytest

from pgtrunk.quic.pmtu import BASE, BLACK_HOLE, MOST, PAUSE, RAISE_TIME, TRIES, Search, State, header_size, sizes


def begun(limit: int = 1472, header: int = 28) -> Search:
    search = Search()
    search.begin(limit, header)
    return search


def probe(search: Search, carries: int, *, now: float = 0.0) -> list[int]:
    """Send all probes that the search wants, over a path that carries so much; return their sizes."""
    sent: list[int] = []
    while size := search.probe:
        sent.append(size)
        search.sent(now, 0.3)
        assert search.probe == 0
        if size <= carries:
            search.acked(size)
        else:
            assert search.at == now + 0.3
            search.expired(now + 0.2)
            search.expired(now + 0.3)
        assert len(sent) < 100
    return sent


def test_sizes_are_those_of_links_less_the_headers() -> None:
    assert header_size("192.0.2.1") == header_size("::ffff:192.0.2.1") == 28
    assert header_size("2001:db8::1") == 48
    assert sizes(1472, 28)[0] == 1252
    assert sizes(1472, 28)[-1] == 1472
    assert sizes(1452, 48) == [size - 20 for size in sizes(1472, 28)]
    # The limit itself is one, and what it leaves out is not tried.
    assert sizes(1300, 28) == [1252, 1292, 1300]
    assert sizes(BASE, 28) == sizes(0, 28) == []
    assert max(sizes(65527, 28)) == MOST


def test_nothing_is_probed_before_a_full_datagram_has_left() -> None:
    search = begun()
    assert (search.state, search.size, search.probe) == (State.BASE, BASE, 0)
    search.filled(1.0)
    assert (search.state, search.probe) == (State.SEARCHING, 1472)


def test_most_paths_take_one_probe() -> None:
    search = begun()
    search.filled(0.0)
    assert probe(search, 1500) == [1472]
    assert (search.size, search.state) == (1472, State.COMPLETE)
    # And there is nothing above.
    search.filled(10 * RAISE_TIME)
    assert search.state is State.COMPLETE


@pytest.mark.parametrize("header", [28, 48])
@pytest.mark.parametrize("mtu", [1248, 1280, 1399, 1400, 1420, 1450, 1492, 1499, 1500, 9000])
def test_what_a_path_carries_is_found(mtu: int, header: int) -> None:
    limit = 1500 - header
    search = begun(limit, header)
    search.filled(0.0)
    sent = probe(search, mtu - header)
    best = max([size for size in sizes(limit, header) if size <= mtu - header], default=BASE)
    assert search.size == best
    assert search.state is State.COMPLETE
    assert len(sent) <= 5 * TRIES
    assert all(sent.count(size) == (1 if size <= mtu - header else TRIES) for size in sent)


def test_a_lost_probe_is_sent_again_and_a_late_answer_counts() -> None:
    search = begun()
    search.filled(0.0)
    search.sent(0.0, 0.3)
    search.lost(1472)
    assert search.probe == 1472
    search.sent(0.1, 0.3)
    search.lost(1300)  # not the one that is under way
    assert search.probe == 0
    search.lost(1472)
    search.sent(0.5, 0.3)
    search.lost(1472)
    assert search.probe < 1472
    search.acked(1472)
    assert (search.size, search.state) == (1472, State.COMPLETE)


def test_what_was_given_up_is_tried_again_after_a_time() -> None:
    search = begun()
    search.filled(0.0)
    probe(search, 1300)
    assert search.size == 1292
    search.filled(RAISE_TIME - 1)
    assert search.probe == 0
    search.filled(RAISE_TIME + 1)
    assert probe(search, 1500, now=RAISE_TIME + 1) == [1472]
    assert search.size == 1472


def test_what_the_kernel_refuses_is_given_up_at_once() -> None:
    search = begun()
    search.filled(0.0)
    search.sent(0.0, 0.3)
    search.refused(1472)
    assert search.state is State.SEARCHING
    assert 0 < search.probe < 1472
    probe(search, 1400)
    assert search.size == 1392
    # The interface's MTU has changed: even the present size is too large.
    epoch = search.epoch
    search.refused(1392)
    assert (search.size, search.state) == (BASE, State.BASE)
    assert search.epoch > epoch
    search.refused(BASE)
    search.filled(1.0)
    assert search.probe == 1472


def test_a_black_hole_takes_it_back_to_the_base() -> None:
    search = begun()
    search.filled(0.0)
    probe(search, 1500)
    epoch = search.epoch
    for _ in range(3):
        for _ in range(BLACK_HOLE - 1):
            assert not search.large_lost(10.0)
        search.large_acked()
    assert search.size == 1472
    assert [search.large_lost(10.0) for _ in range(BLACK_HOLE)] == [False] * (BLACK_HOLE - 1) + [True]
    assert (search.size, search.state) == (BASE, State.BASE)
    assert search.epoch > epoch
    assert not search.large_lost(10.0)
    search.filled(10.0 + PAUSE - 1)
    assert search.probe == 0
    search.filled(10.0 + PAUSE)
    probe(search, 1300)
    assert search.size == 1292


def test_another_path_is_another_search() -> None:
    search = begun()
    search.filled(0.0)
    probe(search, 1500)
    search.begin(1372, 28)
    assert (search.size, search.state) == (BASE, State.BASE)
    search.filled(0.0)
    assert probe(search, 1500) == [1372]


def test_it_can_be_off() -> None:
    for search in (Search(), begun(BASE)):
        search.filled(0.0)
        search.acked(1472)
        search.refused(1472)
        assert not search.large_lost(0.0)
        assert (search.size, search.state, search.probe) == (BASE, State.OFF, 0)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_the_size_is_proved_and_the_search_ends(seed: int) -> None:
    rng = random.Random(seed)
    search = begun(rng.choice([1280, 1472, 8972, 65527]), rng.choice([28, 48]))
    now, carries, proved = 0.0, rng.randrange(1200, 9000), {BASE}
    for _ in range(300):
        now += rng.random()
        match rng.randrange(8):
            case 0:
                carries = rng.randrange(1200, 9000)
            case 1:
                if search.large_lost(now):
                    proved = {BASE}
            case 2:
                search.large_acked()
            case 3:
                search.refused(rng.randrange(1000, 9000))
                if search.state is State.BASE:
                    proved = {BASE}
            case _:
                search.filled(now)
                if size := search.probe:
                    assert size > search.size
                    search.sent(now, 0.5)
                    if size <= carries and rng.random() < 0.8:
                        search.acked(size)
                        proved.add(size)
                    else:
                        search.lost(size) if rng.random() < 0.5 else search.expired(now + 1)
        assert search.size in proved
        assert "Search" in repr(search)
