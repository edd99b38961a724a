"""Two arms in one figure: every verdict, and what must not be published."""

from __future__ import annotations

import pytest

from helpers.stored_runs import group, run
from netem.errors import LabError
from netem.plan import Arm, Load
from netem.report.compare import Verdict, compare, refuse_contradicted, with_equal_sessions
from netem.report.data import Group
from netem.report.findings import find, tally
from netem.report.sentences import plain, sentence
from netem.report.words import titles

QUIC = Arm(kind="quic", sessions=500, connections=5, streams=100)
WIDE = Arm(kind="quic", sessions=2000, connections=50, streams=40)
POOLER = Arm(kind="pgbouncer", sessions=500)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([35, 36, 37], [260, 270, 280], Verdict.BETTER),
        ([260, 270, 280], [35, 36, 37], Verdict.WORSE),
        ([30, 35, 50], [40, 41, 42], Verdict.SAME),  # ours reach from below theirs to above
        ([90, 700], [35, 36], Verdict.WORSE),  # ours differ by 610, and are all above
        ([40, 41, 42], [30, 35, 50], Verdict.SAME),
        ([100.0, 100.0, 100.0], [102.0, 102.0, 102.0], Verdict.SAME),  # repetitions agree, but 2 % are nothing
        ([100], [120], Verdict.SAME),  # one repetition: who knows
        ([100], [140], Verdict.BETTER),
        ([0, 0, 0], [0, 0, 0], Verdict.SAME),
    ],
)
def test_verdicts_of_a_figure_that_should_be_low(ours: list[float], theirs: list[float], verdict: Verdict) -> None:
    comparison = compare("p99_ms", group(QUIC, ours), group(POOLER, theirs))
    assert comparison is not None
    assert comparison.verdict is verdict


def test_of_throughput_more_is_better() -> None:
    ours, theirs = (group(arm, values, figure="per_second") for arm, values in ((QUIC, [50, 51]), (POOLER, [90, 91])))
    comparison = compare("per_second", ours, theirs)
    assert comparison is not None
    assert comparison.verdict is Verdict.WORSE


def test_what_one_of_them_lacks_is_not_compared() -> None:
    assert compare("pinned_ms", group(QUIC, [1.0]), group(POOLER, [1.0])) is None


def test_a_short_run_and_a_long_one_are_not_compared() -> None:
    short = group(QUIC, [35.0, 35.1], load=Load(kind="fixed", rate=100, seconds=4))
    long = group(POOLER, [90.0, 90.1], load=Load(kind="fixed", rate=100, seconds=20))
    assert compare("p99_ms", short, long) is None


def test_who_fails_is_not_called_quick() -> None:
    """Answers that came are quick where most have failed at once."""
    failing = group(POOLER, [5.0, 5.1], asked=100, done=50, failed=50)
    working = group(QUIC, [35.0, 35.1])
    assert compare("p99_ms", working, failing) is None
    assert compare("p99_ms", failing, working) is None
    slow = group(POOLER, [500.0, 501.0], asked=100, done=50, failed=50)
    assert (found := compare("p99_ms", working, slow)) is not None
    assert found.verdict is Verdict.BETTER


def test_a_claim_that_equal_sessions_contradict_is_refused() -> None:
    wide, pooler, even = group(WIDE, [40, 41]), group(POOLER, [400, 410]), group(QUIC, [402, 411])
    claim = compare("p99_ms", wide, pooler)
    assert claim is not None
    with pytest.raises(LabError, match=r"quic-50x40 against pgbouncer-500 .* 2000 and 500, and with 500 each"):
        refuse_contradicted([claim], [wide, pooler, even])


def test_it_is_published_beside_what_contradicts_it() -> None:
    wide, pooler, even = group(WIDE, [40, 41]), group(POOLER, [400, 410]), group(QUIC, [402, 411])
    claim = compare("p99_ms", wide, pooler)
    assert claim is not None
    refuse_contradicted([claim, *with_equal_sessions(claim, [wide, pooler, even])], [wide, pooler, even])


def test_equal_sessions_that_agree_and_those_of_other_settings_do_not_matter() -> None:
    wide, pooler, even = group(WIDE, [40, 41]), group(POOLER, [400, 410]), group(QUIC, [42, 43])
    elsewhere = [group(QUIC, [900, 901], setting="lossy"), group(POOLER, [90, 91], setting="lossy")]
    claim = compare("p99_ms", wide, pooler)
    assert claim is not None
    refuse_contradicted([claim], [wide, pooler, even, *elsewhere])


def said(found: list[Group], figure: str) -> list[str]:
    return [plain(sentence(each, titles(found))) for each in find(found) if each.rule.figure == figure]


def test_sentences_win_loss_and_no_difference() -> None:
    for values, words in (
        ([35.0, 36.0], "QUIC 5×100 against PgBouncer 500 (500 sessions each), p99: lower, 35.5 against 265 ms, 7.5"),
        ([600.0, 601.0], "p99: higher, 600 against 265 ms, 2.3 times as much."),
        ([266.0, 262.0], "p99: no difference, 264 against 265 ms."),
    ):
        (found,) = said([group(QUIC, values), group(POOLER, [260, 270])], "p99_ms")
        assert words in found.replace("\u00a0", " ")


def test_a_sentence_has_all_settings() -> None:
    found = [
        each
        for setting, loss, ours, theirs in (
            ("0.0.500", 0.0, [33.0, 33.1], [31.0, 31.1]),
            ("0.1.500", 0.001, [35.0, 35.1], [35.0, 35.2]),
            ("1.0.500", 0.01, [35.0, 35.1], [265.0, 266.0]),
        )
        for each in (
            group(QUIC, ours, scenario="loss", setting=setting, loss=loss),
            group(POOLER, theirs, scenario="loss", setting=setting, loss=loss),
        )
    ]
    (words,) = said(found, "p99_ms")
    assert words.replace("\u00a0", " ") == (
        "QUIC 5×100 against PgBouncer 500 (500 sessions each), p99: lower at loss 1 %, 35.0 against 266 ms, 7.6 times "
        "less; no difference at loss 0.1 %, 35.0 against 35.1 ms; higher at no loss, 33.0 against 31.1 ms, 6 % more."
    )
    assert tally([each for each in find(found) if each.rule.figure == "p99_ms"]) == {
        Verdict.BETTER: 1,
        Verdict.SAME: 1,
        Verdict.WORSE: 1,
    }


def test_unequal_sessions_say_what_equal_ones_do() -> None:
    arms = ((WIDE, [40, 41]), (POOLER, [400, 410]), (QUIC, [402, 411]))
    found = [group(arm, values, figure="mean_ms") for arm, values in arms]
    equal, unequal = said(found, "mean_ms")
    assert "(500 sessions each), mean latency: no difference" in equal
    assert "(unequal sessions: 2,000 against 500), mean latency: lower, 40.5 against 405" in unequal
    assert "With equal sessions: QUIC 5×100 against PgBouncer 500 (500 sessions each) no difference" in unequal
    assert unequal.endswith("So it is the number of sessions that makes the difference, not what they travel over.")


def test_without_equal_sessions_the_nearest_are_compared_and_it_is_said() -> None:
    few = Arm(kind="pgbouncer", sessions=10)
    (words,) = said([group(WIDE, [40, 41]), group(POOLER, [400, 410]), group(few, [900, 901])], "p99_ms")
    assert "(unequal sessions: 2,000 against 500)" in words
    assert words.endswith("No arms with equal sessions were run beside it.")


def test_ways_to_write_a_transaction_are_compared_within_an_arm() -> None:
    found = [
        Group((run(QUIC, scenario="transactions", setting=kind, workload=kind, pinned_ms=pinned),))
        for kind, pinned in (("transaction", 95.0), ("function", 2.0))
    ]
    (words,) = said(found, "pinned_ms")
    assert words.startswith("QUIC 5×100 (500 sessions), against statement by statement, time that a backend is held")
    assert "lower (one function), 2 against 95" in words


def test_failures_are_said_beside_latency() -> None:
    found = [group(QUIC, [35.0, 35.1]), group(POOLER, [500.0, 501.0], asked=1000, done=880, failed=120)]
    (words,) = said(found, "p99_ms")
    assert "(of what was answered: up to 12 % of PgBouncer 500's questions failed)" in words
