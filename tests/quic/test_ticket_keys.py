from __future__ import annotations

from pgtrunk_gateway.quic.ticket_keys import PERIOD, TicketKeys
from pgtrunk_gateway.quic.tickets import LIFETIME

KEY = b"k" * 32
NONCE = bytes(12)
NOW = 500_000.5 * PERIOD


def test_workers_that_began_alike_have_the_same_keys_at_any_time() -> None:
    one, other = TicketKeys.begin(KEY, NOW), TicketKeys.begin(KEY, NOW)
    for periods in (0, 0.4, 1, 3, 100):
        now = NOW + periods * PERIOD
        assert other.at(now).open(one.at(now).seal(b"x", nonce=NONCE)) == b"x"


def test_a_worker_that_begins_later_has_them_too() -> None:
    old = TicketKeys.begin(KEY, NOW)
    sealed = old.at(NOW + PERIOD).seal(b"x", nonce=NONCE)
    number, keys = old.known(NOW + 2 * PERIOD)
    assert KEY not in keys
    new = TicketKeys(keys, number)
    assert new.at(NOW + 2 * PERIOD).open(sealed) == b"x"


def test_a_ticket_lives_no_longer_than_the_key_that_opens_it() -> None:
    assert LIFETIME <= PERIOD


def test_a_key_opens_for_a_period_after_the_one_in_which_it_has_sealed() -> None:
    keys = TicketKeys.begin(KEY, NOW)
    sealed = keys.at(NOW).seal(b"x", nonce=NONCE)
    assert keys.at(NOW + PERIOD).open(sealed) == b"x"
    assert keys.at(NOW + 2 * PERIOD).open(sealed) is None


def test_a_clock_that_is_set_back_brings_no_old_key_back() -> None:
    keys = TicketKeys.begin(KEY, NOW)
    sealed = keys.at(NOW).seal(b"x", nonce=NONCE)
    keys.at(NOW + 5 * PERIOD)
    assert keys.at(NOW).open(sealed) is None


def test_a_clock_that_is_far_ahead_takes_no_time() -> None:
    keys = TicketKeys.begin(KEY, NOW)
    assert keys.known(NOW + 1e9)[0] == int((NOW + 1e9) // PERIOD)
