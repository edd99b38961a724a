"""The limit of wrong keys, while it takes a moment to know which are wrong."""

from __future__ import annotations

import asyncio

import pytest

from helpers.cancelling import Moment, cancel_at, cancel_everywhere
from pgtrunk_gateway.auth import LoginLimiter
from pgtrunk_gateway.cancel.guesses import Guesses

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


def guesses(limit: int = 3) -> Guesses:
    return Guesses(LoginLimiter(limit, 3600.0), lambda: 0.0)


def test_one_after_the_other_nobody_waits() -> None:
    open_ = guesses()
    for wrong in (True, False, True, False, True):
        assert open_.admit(HERE) is True
        open_.settle(HERE, wrong=wrong)
    assert open_.admit(HERE) is False
    assert open_.admit(ELSEWHERE) is True
    open_.settle(ELSEWHERE, wrong=True)
    assert len(open_) == 0


def test_a_unix_socket_is_never_limited() -> None:
    open_ = guesses(1)
    for _ in range(10):
        assert open_.admit(None) is True
    for _ in range(10):
        open_.settle(None, wrong=True)
    assert open_.admit(None) is True
    assert len(open_) == 0


def test_without_a_limit_nobody_waits_either() -> None:
    open_ = guesses(0)
    for _ in range(100):
        assert open_.admit(HERE) is True
    for _ in range(100):
        open_.settle(HERE, wrong=True)
    assert len(open_) == 0


async def show(open_: Guesses, seen: list[int], number: int, address: str, *, wrong: bool) -> bool:
    """A request whose key takes a moment to be known -> whether it was looked at."""
    admitted = open_.admit(address)
    if admitted is None:
        admitted = await open_.turn(address)
    if not admitted:
        return False
    seen.append(number)
    await asyncio.sleep(0.001)
    open_.settle(address, wrong=wrong)
    return True


@pytest.mark.parametrize("address", [HERE, "2001:db8::1", "::ffff:192.0.2.1"])
async def test_a_thousand_wrong_ones_at_once_are_no_more_guesses_than_one_after_the_other(address: str) -> None:
    open_ = guesses(3)
    seen: list[int] = []
    looked = await asyncio.gather(*(show(open_, seen, number, address, wrong=True) for number in range(1000)))
    assert (sum(looked), len(seen), len(open_)) == (3, 3, 0)


async def test_a_whole_ipv6_network_is_one_guesser() -> None:
    open_ = guesses(3)
    seen: list[int] = []
    shows = (show(open_, seen, number, f"2001:db8::{number + 1:x}", wrong=True) for number in range(100))
    assert sum(await asyncio.gather(*shows)) == 3


async def test_a_thousand_right_ones_at_once_are_all_looked_at_in_order() -> None:
    open_ = guesses(3)
    seen: list[int] = []
    looked = await asyncio.gather(*(show(open_, seen, number, HERE, wrong=False) for number in range(1000)))
    assert all(looked)
    assert seen == list(range(1000))
    assert len(open_) == 0


async def test_right_ones_among_wrong_ones() -> None:
    """Those behind the last wrong one are not looked at, as if they had come one after the other."""
    open_ = guesses(3)
    seen: list[int] = []
    shows = (show(open_, seen, number, HERE, wrong=number % 10 == 9) for number in range(100))
    await asyncio.gather(*shows)
    assert seen[:30] == list(range(30))
    assert len(seen) <= 32


async def test_other_addresses_do_not_wait() -> None:
    open_ = guesses(1)
    assert open_.admit(HERE) is True
    assert open_.admit(HERE) is None
    assert open_.admit(ELSEWHERE) is True
    open_.settle(HERE, wrong=False)
    open_.settle(ELSEWHERE, wrong=False)
    assert len(open_) == 0


async def test_one_that_is_given_up_at_any_moment_gives_its_turn_back() -> None:
    async def scenario(at: int, moment: Moment) -> bool:
        open_ = guesses(1)
        assert open_.admit(HERE) is True
        asyncio.get_running_loop().call_later(0.01, lambda: open_.settle(HERE, wrong=False))
        hit = await cancel_at(open_.turn(HERE), at, moment)
        if not hit:
            open_.settle(HERE, wrong=False)
        async with asyncio.timeout(10):
            while len(open_):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert open_.admit(HERE) is True
        return hit

    assert await cancel_everywhere(scenario) == 1
