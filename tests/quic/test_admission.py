from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.quic.admission import Admission, AdmissionLimits, HalfOpen, RateLimit, RetryMode, Verdict, site_of
from pgtrunk_gateway.quic.retry import packed_address

HERE, THERE = b"here", b"there"


def admission(retry: RetryMode = "auto", total: int = 40, per_address: int = 12) -> Admission:
    return Admission(AdmissionLimits(retry=retry, max_half_open=total, max_half_open_per_address=per_address))


def fill(gate: Admission, sites: list[bytes], *, proved: bool) -> list[Verdict]:
    verdicts = []
    for site in sites:
        verdicts.append(gate.judge(site, proved=proved))
        if verdicts[-1] is Verdict.ADMIT:
            gate.begin(site, proved=proved)
    return verdicts


def test_a_quiet_gate_admits() -> None:
    assert admission().judge(HERE, proved=False) is Verdict.ADMIT


def test_always_asks_everybody_once() -> None:
    gate = admission("always")
    assert gate.judge(HERE, proved=False) is Verdict.RETRY
    assert gate.judge(HERE, proved=True) is Verdict.ADMIT


def test_never_asks_nobody_and_drops_above_the_limits() -> None:
    gate = admission("never")
    assert fill(gate, [HERE] * 13, proved=False) == [Verdict.ADMIT] * 12 + [Verdict.DROP]
    assert gate.judge(THERE, proved=False) is Verdict.ADMIT
    fill(gate, [bytes([n]) for n in range(28)], proved=False)
    assert gate.half_open == 40
    assert gate.judge(THERE, proved=False) is Verdict.DROP
    # Who has shown its address is real, and may have its turn.
    assert gate.judge(THERE, proved=True) is Verdict.WAIT
    assert not gate.may_begin(THERE, proved=True)


def test_who_waits_counts_for_those_who_have_not_shown_their_address() -> None:
    gate = admission()
    assert gate.judge(HERE, proved=False, waiting=9) is Verdict.ADMIT
    assert gate.judge(HERE, proved=False, waiting=10) is Verdict.RETRY
    gate = admission("never")
    assert gate.judge(HERE, proved=False, waiting=39) is Verdict.ADMIT
    assert gate.judge(HERE, proved=False, waiting=40) is Verdict.DROP
    assert gate.judge(HERE, proved=True, waiting=4000) is Verdict.ADMIT


def test_auto_asks_when_it_gets_crowded_and_keeps_room_for_those_who_show() -> None:
    gate = admission()
    verdicts = fill(gate, [bytes([n]) for n in range(100)], proved=False)
    assert verdicts == [Verdict.ADMIT] * 10 + [Verdict.RETRY] * 90
    assert gate.judge(HERE, proved=True) is Verdict.ADMIT


def test_auto_asks_an_address_with_much_half_open() -> None:
    gate = admission()
    assert fill(gate, [HERE] * 5, proved=False) == [Verdict.ADMIT] * 3 + [Verdict.RETRY] * 2
    assert gate.judge(THERE, proved=False) is Verdict.ADMIT


def test_a_forged_address_does_not_lock_its_owner_out() -> None:
    gate = admission()
    fill(gate, [HERE] * 100, proved=False)
    assert gate.judge(HERE, proved=False) is Verdict.RETRY
    assert fill(gate, [HERE] * 13, proved=True) == [Verdict.ADMIT] * 12 + [Verdict.WAIT]
    assert not gate.may_begin(HERE, proved=True)
    assert gate.may_begin(THERE, proved=True)


def test_what_ends_makes_room() -> None:
    gate = admission("never", per_address=1)
    entry = gate.begin(HERE, proved=False)
    assert gate.judge(HERE, proved=False) is Verdict.DROP
    gate.end(entry)
    assert gate.judge(HERE, proved=False) is Verdict.ADMIT
    assert repr(gate) == "<Admission [0 half open, 0 sites]>"


@given(st.lists(st.tuples(st.sampled_from([HERE, THERE]), st.booleans(), st.booleans())))
def test_nothing_is_left_when_all_has_ended(steps: list[tuple[bytes, bool, bool]]) -> None:
    gate = admission()
    entries: list[HalfOpen] = []
    for site, proved, ends in steps:
        if ends and entries:
            gate.end(entries.pop())
        elif gate.judge(site, proved=proved) is Verdict.ADMIT:
            entries.append(gate.begin(site, proved=proved))
        assert gate.half_open == len(entries) <= 40
    for entry in entries:
        gate.end(entry)
    assert repr(gate) == "<Admission [0 half open, 0 sites]>"


def test_an_ipv6_site_is_a_network_and_an_ipv4_site_an_address() -> None:
    def site(host: str) -> bytes:
        return site_of(packed_address((host, 1)))

    assert site("2001:db8:1:2::1") == site("2001:db8:1:2:ffff::9")
    assert site("2001:db8:1:2::1") != site("2001:db8:1:3::1")
    assert site("10.0.0.1") != site("10.0.0.2")
    assert site("::ffff:10.0.0.1") == site("10.0.0.1")


def test_a_rate_is_kept_over_time() -> None:
    limit = RateLimit(2)
    assert [limit.allows(100.0) for _ in range(3)] == [True, True, False]
    assert [limit.allows(100.5), limit.allows(100.5)] == [True, False]
    assert [limit.allows(1e6) for _ in range(3)] == [True, True, False]
