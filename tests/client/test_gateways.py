"""Which gateway is tried first, which is dead, and what is misplaced: tables, without a socket."""

from __future__ import annotations

import socket
from collections import Counter
from random import Random
from typing import Any

import pytest

from pgtrunk.address import Address
from pgtrunk.errors import CertificateError, GatewayUnreachable
from pgtrunk.gateways import DISTRUST, PATIENCE, SPARED, Candidate, Gateways, Move

GW = [Address(f"gw{number}.test") for number in range(4)]
V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
DOWN = GatewayUnreachable("nothing listens there")


def at(gateway: int, last: int = 1, family: int = V4) -> Candidate:
    host = f"10.0.{gateway}.{last}" if family == V4 else f"2001:db8:{gateway}::{last}"
    return Candidate(GW[gateway], family, (host, 6432))


def made(number: int, *, spreads: bool = True, salt: bytes = b"salt") -> Gateways:
    gateways = Gateways(GW[:number], spreads=spreads, salt=salt)
    for each in range(number):
        gateways.resolved(GW[each], [at(each)])
    return gateways


def planned(gateways: Gateways, candidates: list[Candidate], now: float = 0.0, **counts: Any) -> list[Candidate]:
    return [step.candidate for step in gateways.plan(candidates, counts.get("counts", {}), now)]


# Rule 1: the spread.


def test_a_trunk_goes_where_it_has_the_fewest_connections() -> None:
    gateways = made(3)
    counts: Counter[Candidate] = Counter()
    for _ in range(12):
        counts[planned(gateways, [at(0), at(1), at(2)], counts=counts)[0]] += 1
        assert max(counts.values()) - min(counts[at(each)] for each in range(3)) <= 1
    assert set(counts.values()) == {4}


def test_many_trunks_with_a_connection_each_are_spread_too() -> None:
    first: Counter[Candidate] = Counter()
    second: Counter[Candidate] = Counter()
    for number in range(1200):
        plan = planned(made(3, salt=b"%d" % number), [at(0), at(1), at(2)])
        first[plan[0]] += 1
        if plan[0] == at(0):
            second[plan[1]] += 1
    assert all(300 < first[at(each)] < 500 for each in range(3))
    # Who loses a gateway does not go with all others to the same next one.
    assert set(second) == {at(1), at(2)}
    assert 0.6 < second[at(1)] / second[at(2)] < 1.6


def test_what_a_trunk_prefers_stays_so() -> None:
    gateways = made(4)
    assert len({tuple(planned(gateways, [at(each) for each in order])) for order in ([0, 1, 2, 3], [3, 2, 1, 0])}) == 1


def test_the_addresses_of_a_name_are_spread_over() -> None:
    gateways = Gateways(GW[:1], spreads=True, salt=b"salt")
    addresses = [at(0, last) for last in (1, 2, 3)]
    gateways.resolved(GW[0], addresses)
    counts: Counter[Candidate] = Counter()
    for _ in range(9):
        counts[planned(gateways, addresses, counts=counts)[0]] += 1
    assert counts == dict.fromkeys(addresses, 3)


def test_without_load_balancing_the_order_is_that_of_the_list_and_of_the_resolver() -> None:
    for salt in (b"a", b"b", b"c"):
        gateways = Gateways(GW[:2], spreads=False, salt=salt)
        gateways.resolved(GW[0], [at(0, 9), at(0, 1)])
        gateways.resolved(GW[1], [at(1)])
        assert planned(gateways, [at(1), at(0, 9), at(0, 1)], counts={at(0, 9): 5}) == [at(0, 9), at(0, 1), at(1)]
        assert gateways.order({at(0, 9): 5}, 0.0) == GW[:2]


# Rule 2: turns.


def test_families_take_turns_and_gateways_too() -> None:
    gateways = Gateways(GW[:2], spreads=False, salt=b"")
    mine = [at(0, 1, V6), at(0, 2, V6), at(0, 3, V6), at(0, 1), at(0, 2)]
    others = [at(1, 1), at(1, 2), at(1, 1, V6)]
    gateways.resolved(GW[0], mine)
    gateways.resolved(GW[1], others)
    assert planned(gateways, mine + others) == [
        at(0, 1, V6), at(0, 1),  # the resolver's favourite family first
        at(1, 1), at(1, 1, V6),
        at(0, 2, V6), at(0, 2),
        at(1, 2),
        at(0, 3, V6),
    ]  # fmt: skip


# Rule 3: what is dead.


def test_a_dead_address_is_the_last_one_until_it_is_due_and_then_a_probe_until_it_answers() -> None:
    gateways = made(2, spreads=False)
    gateways.failed(at(0), DOWN, now=0.0, jitter=0.0)
    both = [at(0), at(1)]
    due = PATIENCE.base
    assert planned(gateways, both, now=due - 0.01) == [at(1), at(0)]
    assert gateways.order({}, due - 0.01) == [GW[1], GW[0]]
    steps = gateways.plan(both, {}, due)
    assert [(step.candidate, step.is_probe) for step in steps] == [(at(0), True), (at(1), False)]
    gateways.reached(at(0), 0.03)
    steps = gateways.plan(both, {}, due)
    assert [(step.candidate, step.is_probe, step.round_trip) for step in steps] == [
        (at(0), False, 0.03),
        (at(1), False, None),
    ]


def test_the_while_grows_with_failures_and_jitter_takes_off_up_to_half() -> None:
    def dead_for(failures: int, jitter: float, error: Exception = DOWN) -> float:
        gateways = made(1)
        for _ in range(failures):
            gateways.failed(at(0), error, now=100.0, jitter=jitter)
        return gateways._of(at(0)).retry_at - 100.0

    assert [dead_for(failures, 0.0) for failures in (1, 2, 3, 5, 6, 60)] == [1.0, 2.0, 4.0, 16.0, 30.0, 30.0]
    assert dead_for(6, 0.999) == pytest.approx(15.0, rel=0.01)
    assert dead_for(1, 0.0, CertificateError("not for it")) == DISTRUST.base


def test_where_all_are_dead_all_are_tried_in_turn_the_first_to_be_due_first() -> None:
    gateways = made(3, spreads=False)
    for each, moment in ((0, 2.0), (1, 0.0), (2, 1.0)):
        gateways.failed(at(each), DOWN, now=moment, jitter=0.0)
    steps = gateways.plan([at(0), at(1), at(2)], {}, 0.5)
    assert [step.candidate for step in steps] == [at(1), at(2), at(0)]
    assert not any(step.is_probe for step in steps)


def test_an_attempt_that_tells_nothing_puts_off_what_was_dead_and_is_nothing_to_what_was_not() -> None:
    gateways = made(2, spreads=False)
    for _ in range(9):
        gateways.failed(at(0), DOWN, now=0.0, jitter=0.0)
    gateways.undecided(at(0), now=10.0, jitter=0.0)
    gateways.undecided(at(1), now=10.0, jitter=0.0)
    assert planned(gateways, [at(0), at(1)], now=10.5) == [at(1), at(0)]
    assert planned(gateways, [at(0), at(1)], now=11.0) == [at(0), at(1)]


def test_a_name_that_cannot_be_resolved_keeps_the_addresses_that_it_had() -> None:
    gateways = made(2, spreads=False)
    assert gateways.unresolved(GW[0], DOWN, now=0.0, jitter=0.0) == (at(0),)
    assert gateways.order({}, 0.0) == GW[:2]
    fresh = Gateways(GW[:2], spreads=False, salt=b"")
    assert fresh.unresolved(GW[0], DOWN, now=0.0, jitter=0.0) == ()
    assert fresh.order({}, 0.0) == [GW[1], GW[0]]
    assert fresh.order({}, 1.0) == GW[:2]
    fresh.resolved(GW[0], [at(0)])
    assert fresh.order({}, 0.0) == GW[:2]


def test_what_is_known_of_an_address_goes_with_it() -> None:
    gateways = made(1)
    gateways.failed(at(0), DOWN, now=0.0, jitter=0.0)
    gateways.resolved(GW[0], [at(0, 2)])
    gateways.resolved(GW[0], [at(0), at(0, 2)])
    assert len(gateways._health) <= 1
    assert not any(step.is_probe for step in gateways.plan([at(0), at(0, 2)], {}, 5.0))


# Rule 4: what is spared.


def test_a_gateway_that_asks_to_be_left_is_spared_for_a_while() -> None:
    gateways = made(2, spreads=False)
    gateways.spare(at(0), now=0.0)
    assert planned(gateways, [at(0), at(1)], now=SPARED - 0.1) == [at(1), at(0)]
    assert planned(gateways, [at(0)], now=0.0) == [at(0)]
    steps = gateways.plan([at(0), at(1)], {}, SPARED)
    assert [(step.candidate, step.is_probe) for step in steps] == [(at(0), False), (at(1), False)]


# Rule 5: what is misplaced.


def ranked(number: int) -> tuple[Gateways, list[int]]:
    """Gateways of a trunk, and their numbers in its order."""
    gateways = made(number)
    return gateways, [GW.index(gateway) for gateway in gateways.order({}, 0.0)]


@pytest.mark.parametrize(
    ("counts", "move"),
    [
        ((0, 0, 0), None),
        ((1, 0, 0), None),
        ((0, 1, 0), (1, 0)),
        ((0, 0, 1), (2, 0)),
        ((1, 1, 0), None),
        ((1, 0, 1), (2, 1)),
        ((1, 1, 1), None),
        ((2, 0, 0), (0, 1)),
        ((2, 1, 1), None),
        ((1, 2, 1), (1, 0)),
        ((0, 2, 2), (2, 0)),
        ((2, 2, 0), (1, 2)),
        ((4, 0, 0), (0, 1)),
    ],
)
def test_one_connection_moves_at_a_time(counts: tuple[int, ...], move: tuple[int, int] | None) -> None:
    """The places in the table are those in the trunk's order."""
    gateways, order = ranked(3)
    held = {at(order[place]): number for place, number in enumerate(counts)}
    expected = None if move is None else Move(at(order[move[0]]), GW[order[move[1]]])
    assert gateways.misplaced(held, 0.0) == expected


@pytest.mark.parametrize("counts", [(4, 0, 0), (0, 0, 4), (0, 5, 0), (0, 0, 1), (2, 2, 0), (7, 1, 2)])
def test_moves_come_to_an_end_at_an_even_spread(counts: tuple[int, ...]) -> None:
    gateways, _ = ranked(3)
    held = Counter({at(each): number for each, number in enumerate(counts)})
    moves = 0
    while (move := gateways.misplaced(held, 0.0)) is not None:
        held[move.source] -= 1
        held[at(GW.index(move.gateway))] += 1
        moves += 1
        assert moves <= 10
    assert max(held.values()) - min(held[at(each)] for each in range(3)) <= 1


def test_nothing_moves_to_what_is_dead_or_spared_until_it_is_due() -> None:
    gateways, order = ranked(2)
    first, second = at(order[0]), at(order[1])
    gateways.failed(first, DOWN, now=0.0, jitter=0.0)
    assert gateways.misplaced({second: 3}, 0.9) is None
    assert gateways.misplaced({second: 3}, 1.0) == Move(second, first.gateway)
    gateways.reached(first, None)
    gateways.spare(first, 1.0)
    assert gateways.misplaced({second: 3}, 1.0) is None
    assert gateways.misplaced({second: 3}, 1.0 + SPARED) == Move(second, first.gateway)


def test_without_load_balancing_all_return_to_the_first_that_is_alive() -> None:
    gateways = made(3, spreads=False)
    assert gateways.misplaced({at(0): 4}, 0.0) is None
    assert gateways.misplaced({at(0): 4, at(2): 1}, 0.0) == Move(at(2), GW[0])
    gateways.failed(at(0), DOWN, now=0.0, jitter=0.0)
    assert gateways.misplaced({at(2): 4}, 0.5) == Move(at(2), GW[1])
    assert gateways.misplaced({at(1): 4}, 0.5) is None


def test_the_addresses_of_one_name_are_evened_out_too_within_a_family() -> None:
    gateways = Gateways(GW[:1], spreads=True, salt=b"salt")
    pair = [at(0, 1, V6), at(0, 2, V6)]
    gateways.resolved(GW[0], [*pair, at(0, 1)])
    move = gateways.misplaced({pair[0]: 2}, 0.0)
    assert move == Move(pair[0], GW[0], pair[1])
    assert gateways.misplaced({pair[0]: 1, pair[1]: 1}, 0.0) is None
    assert gateways.misplaced({at(0, 1): 2}, 0.0) is None
    gateways.failed(pair[1], DOWN, now=0.0, jitter=0.0)
    assert gateways.misplaced({pair[0]: 2}, 0.5) is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_address_is_tried_once_and_moves_come_to_an_end(seed: int) -> None:
    chance = Random(seed)
    gateways = made(3, spreads=chance.random() < 0.7, salt=b"%d" % seed)
    addresses = [at(each, last, family) for each in range(3) for last in (1, 2) for family in (V4, V6)]
    for each in range(3):
        gateways.resolved(GW[each], [address for address in addresses if address.gateway == GW[each]])
    held: Counter[Candidate] = Counter()
    now = 0.0
    for _ in range(200):
        now += chance.random() * 3
        known = chance.sample(addresses, chance.randint(1, len(addresses)))
        plan = gateways.plan(known, held, now)
        assert sorted(step.candidate.sockaddr for step in plan) == sorted(each.sockaddr for each in known)
        assert not all(step.is_probe for step in plan), "somebody has to be waited for"
        first = plan[0].candidate
        match chance.randrange(4):
            case 0:
                gateways.failed(first, None, now, chance.random())
                held.pop(first, None)
            case 1:
                gateways.spare(first, now)
            case 2:
                gateways.undecided(first, now, chance.random())
            case _:
                gateways.reached(first, chance.random() / 10)
                held[first] += 1
    now += 100.0
    for _ in range(400):
        move = gateways.misplaced(held, now)
        if move is None:
            return
        assert held[move.source] > 0
        target = move.candidate or planned(gateways, [a for a in addresses if a.gateway == move.gateway], now)[0]
        gateways.reached(target, None)
        held[move.source] -= 1
        held[target] += 1
    pytest.fail("it moves for ever")
