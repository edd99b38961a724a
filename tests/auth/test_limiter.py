"""Guessing is slowed down, logging in is not; the clock is a number."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.auth import LoginLimiter

ADDRESS = "192.0.2.1"


def fail(limiter: LoginLimiter, address: str | None = ADDRESS, *, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        limiter.failed(address, now)


def test_any_number_of_good_logins_passes() -> None:
    limiter = LoginLimiter(limit=10, window=60.0)
    for _ in range(500):
        assert limiter.allow(ADDRESS, 0.0) == 0.0
        limiter.succeeded(ADDRESS, 0.0)
    assert len(limiter) == 0


def test_the_limit_and_how_long_to_wait() -> None:
    limiter = LoginLimiter(limit=10, window=60.0)
    fail(limiter, times=9)
    assert limiter.allow(ADDRESS, 0.0) == 0.0
    fail(limiter, times=1)
    assert limiter.allow(ADDRESS, 0.0) == pytest.approx(6.0)
    assert limiter.allow(ADDRESS, 5.0) == pytest.approx(1.0)
    assert limiter.allow(ADDRESS, 6.001) == 0.0


def test_after_the_wait_there_is_one_guess_and_after_the_window_all() -> None:
    limiter = LoginLimiter(limit=10, window=60.0)
    fail(limiter, times=10)
    limiter.failed(ADDRESS, 6.0)
    assert limiter.allow(ADDRESS, 6.001) > 5.9
    assert limiter.allow(ADDRESS, 66.0) == 0.0
    assert len(limiter) == 0


def test_a_flood_that_was_let_in_together_does_not_shut_out_for_hours() -> None:
    limiter = LoginLimiter(limit=10, window=60.0)
    fail(limiter, times=10_000)
    assert limiter.allow(ADDRESS, 0.0) <= 6.0


def test_the_guesses_of_an_hour_are_bounded() -> None:
    limiter = LoginLimiter(limit=10, window=60.0)
    guesses, now = 0, 0.0
    while now < 3600.0:
        wait = limiter.allow(ADDRESS, now)
        if wait == 0.0:
            limiter.failed(ADDRESS, now)
            guesses += 1
        now += max(wait, 0.001)
    assert guesses <= 10 + 600


def test_each_good_login_gives_one_failure_back() -> None:
    limiter = LoginLimiter(limit=3, window=60.0)
    fail(limiter, times=3)
    limiter.succeeded(ADDRESS, 0.0)
    assert limiter.allow(ADDRESS, 0.0) == 0.0
    fail(limiter, times=1)
    assert limiter.allow(ADDRESS, 0.0) > 0.0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::1", True),
        ("192.0.2.1", "2001:db8::1", False),
    ],
)
def test_who_counts_as_one(one: str, other: str, is_same: bool) -> None:
    limiter = LoginLimiter(limit=1)
    limiter.failed(one, 0.0)
    assert limiter.allow(one, 0.0) > 0.0
    assert (limiter.allow(other, 0.0) > 0.0) is is_same


@pytest.mark.parametrize("address", [None, "", "/tmp/.s.PGSQL.6432", "@abstract", "localhost"])
def test_who_has_no_address_is_never_limited(address: str | None) -> None:
    limiter = LoginLimiter(limit=1)
    fail(limiter, address, times=5)
    limiter.succeeded(address, 0.0)
    assert limiter.allow(address, 0.0) == 0.0
    assert len(limiter) == 0


def test_a_limit_of_nought_is_none() -> None:
    limiter = LoginLimiter(limit=0)
    fail(limiter, times=100)
    assert limiter.allow(ADDRESS, 0.0) == 0.0
    assert len(limiter) == 0


def test_memory_is_bounded_and_who_failed_last_is_remembered() -> None:
    limiter = LoginLimiter(limit=1, capacity=100)
    for number in range(1000):
        limiter.failed(f"192.0.{number // 256}.{number % 256}", 0.0)
        limiter.failed(ADDRESS, 0.0)
    assert len(limiter) == 100
    assert limiter.allow(ADDRESS, 0.0) > 0.0


def test_what_is_not_known_yet_may_still_fail() -> None:
    limiter = LoginLimiter(limit=10, window=60.0)
    fail(limiter, times=6)
    assert limiter.allow(ADDRESS, 0.0, pending=3) == 0.0
    assert limiter.allow(ADDRESS, 0.0, pending=4) == pytest.approx(6.0)
    assert limiter.allow("192.0.2.2", 0.0, pending=9) == 0.0
    assert limiter.allow("192.0.2.2", 0.0, pending=10) > 0.0
    assert LoginLimiter(limit=0).allow(ADDRESS, 0.0, pending=1000) == 0.0
