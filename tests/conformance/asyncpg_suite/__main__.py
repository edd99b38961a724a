"""``make conformance-asyncpg SUITE=/path/to/checkout``: asyncpg's own tests, directly, and over QUIC in each pool mode.

The checkout is asyncpg's repository, or its source distribution, at the version that is installed here; it is not part
of this one. The exit code is 0 where the tests that pass directly pass behind a gateway too, but for those that
``expected.txt`` names, and where all of these do not. A run of all modes and tests writes ``last.json``.
"""

# ruff: noqa: E402 - modules are found only once the path is set
from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

# Not the folder of this file, which comes first otherwise.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.machine import commit
from conformance.asyncpg_suite.names import CARRIED, Difference, Outcome, Verdict, judge, read_differences
from conformance.asyncpg_suite.site import DIRECT, Suite, suite_version
from conformance.errors import ConformanceError

HERE = Path(__file__).resolve().parent
_INTERRUPTED = 130
_AGAIN = 10
"""Tests that may be run a second time; more are no coincidence."""

Outcomes = Mapping[str, Mapping[str, Outcome]]
"""Mode -> test -> what it did."""
Named = Mapping[str, Mapping[str, Difference]]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where something is not as expected, 2 where nothing could be run."""
    arguments = _parser().parse_args(argv)
    modes = tuple(dict.fromkeys(arguments.modes or CARRIED))
    is_whole = arguments.keyword is None and set(modes) == set(CARRIED)
    output = arguments.output or (HERE / "last.json" if is_whole else None)
    try:
        named = read_differences((HERE / "expected.txt").read_text().splitlines())
        _check_version(arguments.suite)
        suite = Suite(arguments.suite.resolve(), arguments.keyword)
        # Now: what is tested is what is there when it begins.
        head = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit()}
        outcomes = {mode: _run(suite, mode) for mode in (DIRECT, *modes)}
        # Directly first, for that is what the others are held against.
        again = {mode: _again(suite, mode, outcomes, named) for mode in (DIRECT, *modes)}
    except ConformanceError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything is stopped and removed")
        return _INTERRUPTED
    agree = [_say(mode, outcomes, named[mode], everything=arguments.keyword is None) for mode in modes]
    _say_table(outcomes)
    if output:
        output.write_text(json.dumps(head | _last(outcomes, named, again), indent=2) + "\n")
    return 0 if all(agree) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/conformance/asyncpg_suite", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--suite", type=Path, required=True, help="a checkout of asyncpg's repository")
    parser.add_argument(
        "--mode", dest="modes", action="append", choices=CARRIED, help="of the pool; may be repeated (default: both)"
    )
    parser.add_argument("-k", dest="keyword", help="the tests that match, as in pytest (default: all)")
    parser.add_argument(
        "--output",
        type=Path,
        help="where the result goes (default: last.json here for both modes and all tests, nowhere otherwise)",
    )
    return parser


def _check_version(checkout: Path) -> None:
    theirs, ours = suite_version(checkout), version("asyncpg")
    if theirs != ours:
        raise ConformanceError(
            f"{checkout} is asyncpg {theirs}, and {ours} is installed here: git checkout v{ours}, or take the "
            f"source distribution: pip download --no-deps --no-binary asyncpg asyncpg=={ours}"
        )


def _run(suite: Suite, mode: str, tests: Sequence[str] = ()) -> dict[str, Outcome]:
    print(f"\n{mode}" + (f", once more: {', '.join(tests)}" if tests else ""), flush=True)
    return suite.run(mode, tests)


def _again(suite: Suite, mode: str, outcomes: Mapping[str, dict[str, Outcome]], named: Named) -> list[str]:
    """Runs those anew of which more was expected, and takes what they do then: many of the suite's tests have a
    deadline, and the machine may have been busy. With their classes, whose end is a part of their last test. -> those
    that passed so."""
    if mode == DIRECT:
        broken = tuple(name for name, outcome in outcomes[DIRECT].items() if outcome.result == "failed")
    else:
        broken = judge(outcomes[DIRECT], outcomes[mode], named[mode]).broken
    if not 0 < len(broken) <= _AGAIN:
        return []
    classes = tuple(dict.fromkeys(name.rpartition("::")[0] for name in broken))
    second = {name: outcome for name, outcome in _run(suite, mode, classes).items() if name in broken}
    outcomes[mode].update(second)
    return [name for name, outcome in second.items() if outcome.passed]


def _say(mode: str, outcomes: Outcomes, named: Mapping[str, Difference], *, everything: bool) -> bool:
    """-> whether all is as expected. Where not everything was run, a test that is missing says nothing."""
    verdict = judge(outcomes[DIRECT], outcomes[mode], named)
    verdict = verdict if everything else Verdict(verdict.broken, verdict.mended)
    width = shutil.get_terminal_size().columns
    for title, names in (
        ("passes directly, and not here", verdict.broken),
        ("is in expected.txt, and passed", verdict.mended),
        ("is in expected.txt, and does not pass directly", verdict.unknown),
    ):
        for name in names:
            outcome = outcomes[mode].get(name, Outcome("not run"))
            print(f"{mode}: {title}: {name}: {outcome.result} {outcome.message}".rstrip()[:width])
    return verdict == Verdict()


def _say_table(outcomes: Outcomes) -> None:
    print(f"\n{'':12}{'passed':>9}{'failed':>9}{'skipped':>9}{'sessions':>10}")
    for mode, results in outcomes.items():
        counts, sessions = _counts(results), sum(outcome.sessions for outcome in results.values())
        print(f"{mode:12}{counts['passed']:9}{counts['failed']:9}{counts['skipped']:9}{sessions:10}")


def _counts(outcomes: Mapping[str, Outcome]) -> Mapping[str, int]:
    counted = Counter(outcome.result for outcome in outcomes.values())
    return {result: counted[result] for result in ("passed", "failed", "skipped")}


def _last(outcomes: Outcomes, named: Named, again: Mapping[str, Sequence[str]]) -> dict[str, object]:
    direct = outcomes[DIRECT]
    return {
        "asyncpg": version("asyncpg"),
        "counts": {mode: _counts(results) for mode, results in outcomes.items()},
        "passed_when_run_again": again,
        "differences": {
            mode: {
                name: {"row": why.row, "said": _in(outcomes[mode], name).message} for name, why in named[mode].items()
            }
            for mode in outcomes
            if mode in named
        },
        "skipped": {name: outcome.message for name, outcome in direct.items() if outcome.result == "skipped"},
        "tests": {name: _row(name, outcomes) for name, outcome in direct.items() if outcome.result != "skipped"},
    }


def _row(name: str, outcomes: Outcomes) -> dict[str, str | int]:
    """What a test did in each mode, and how many sessions were carried for it; 0: it is about asyncpg alone."""
    results = {mode: _in(each, name) for mode, each in outcomes.items()}
    return {
        **{mode: outcome.result for mode, outcome in results.items()},
        "sessions": max(outcome.sessions for outcome in results.values()),
    }


def _in(outcomes: Mapping[str, Outcome], name: str) -> Outcome:
    return outcomes.get(name, Outcome("not run"))


if __name__ == "__main__":
    sys.exit(main())
