"""``make conformance SUITE=/path/to/checkout``: PgBouncer's own tests against the gateway, beside what is expected.

The checkout is PgBouncer's repository, which is not part of this one. The exit code is 1 where a test fails that is
expected to pass. A run of a whole tier writes ``last.json``.
"""

# ruff: noqa: E402 - modules are found only once the path is set
from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

# Not the folder of this file, which comes first otherwise: our modules are `conformance.` something.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.machine import commit
from conformance.errors import ConformanceError
from conformance.lists import Expected, Verdict, judge, read_expected, read_tier
from conformance.outcomes import Outcome, read_report
from conformance.running import Run, find_postgres, postgres_version, run
from conformance.suite import suite_version

HERE = Path(__file__).resolve().parent
_INTERRUPTED = 130
_AGAIN = 10
"""Tests that may be run a second time; more are no coincidence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where something is not as expected, 2 where nothing could be run."""
    arguments = _parser().parse_args(argv)
    try:
        expected = _expected(arguments.by_sidecar)
        plan = _plan(arguments)
        # Now: what is tested is what is there when it begins.
        arguments.commit = commit()
        outcomes = read_report(run(plan))
        again = _again(plan, expected, outcomes)
    except ConformanceError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything is stopped and removed")
        return _INTERRUPTED
    verdict = judge(expected, _passed(outcomes))
    _say(outcomes, verdict)
    if arguments.output:
        arguments.output.write_text(json.dumps(_last(arguments, plan, outcomes, again), indent=2) + "\n")
    return 1 if verdict.broken else 0


def _expected(by_sidecar: bool) -> dict[str, Expected]:
    """Through a sidecar some things are otherwise, and then its own list has the last word."""
    names = ("expected.txt", "expected_sidecar.txt") if by_sidecar else ("expected.txt",)
    lists = (read_expected((HERE / name).read_text().splitlines()) for name in names)
    return {name: each for expected in lists for name, each in expected.items()}


def _again(plan: Run, expected: Mapping[str, Expected], outcomes: dict[str, Outcome]) -> list[str]:
    """Runs the tests anew, one at a time, of which more was expected, and takes what they do then. Some of them race:
    a cancel with its query, or a gateway's start on a busy machine with five seconds. -> those that passed so."""
    broken = judge(expected, _passed(outcomes)).broken
    if not 0 < len(broken) <= _AGAIN:
        return []
    print(f"\nonce more, one at a time: {', '.join(broken)}", flush=True)
    second = read_report(run(replace(plan, tests=broken, keyword=None, workers=1)))
    outcomes.update(second)
    return [name for name, outcome in second.items() if outcome.passed]


def _passed(outcomes: Mapping[str, Outcome]) -> dict[str, bool]:
    return {name: outcome.passed for name, outcome in outcomes.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/conformance", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suite", type=Path, required=True, help="a checkout of PgBouncer's repository")
    parser.add_argument("--tier", default="A", choices=("A", "all"), help="which tests (default: A)")
    parser.add_argument("-k", dest="keyword", help="of those, the ones that match, as in pytest")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="how many at once (default: 2)")
    pooler = parser.add_mutually_exclusive_group()
    pooler.add_argument("--program", type=Path, help="the pooler to test (default: the gateway of this repository)")
    pooler.add_argument(
        "--by-sidecar", action="store_true", help="SQL goes through a sidecar, and over QUIC to the gateway"
    )
    parser.add_argument(
        "--python", type=Path, help="an interpreter that has what the suite needs, and the gateway (default: made anew)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="where the result goes (default: last.json here, or last_sidecar.json, for all of tier A; else nowhere)",
    )
    return parser


def _plan(arguments: argparse.Namespace) -> Run:
    if arguments.program is not None and not os.access(arguments.program, os.X_OK):
        raise ConformanceError(f"{arguments.program}: no such program")
    whole = arguments.tier == "A" and arguments.keyword is None and arguments.program is None
    if arguments.output is None and whole:
        arguments.output = HERE / ("last_sidecar.json" if arguments.by_sidecar else "last.json")
    tests = read_tier((HERE / "tier_a.txt").read_text().splitlines()) if arguments.tier == "A" else ()
    return Run(
        checkout=arguments.suite.resolve(),
        postgres=find_postgres(),
        program=_absolute(arguments.program),
        tests=tests,
        keyword=arguments.keyword,
        workers=arguments.workers,
        python=_absolute(arguments.python),
        by_sidecar=arguments.by_sidecar,
    )


def _absolute(path: Path | None) -> Path | None:
    # Not resolved: a virtual environment is known by the path of its program.
    return None if path is None else Path(os.path.abspath(path))


def _say(outcomes: Mapping[str, Outcome], verdict: Verdict) -> None:
    width = shutil.get_terminal_size().columns
    for title, names in (
        ("expected to pass, and did not", verdict.broken),
        ("expected to fail, and passed: expected.txt can say so", verdict.mended),
        ("not in expected.txt", verdict.unknown),
    ):
        if names:
            print(f"\n{title}:")
        for name in names:
            print(f"  {name}: {outcomes[name].result} {outcomes[name].message}".rstrip()[:width])
    counts = _counts(outcomes)
    print(f"\n{counts['passed']} of {len(outcomes)} pass, {counts['failed']} fail, {counts['skipped']} skipped")


def _counts(outcomes: Mapping[str, Outcome]) -> Mapping[str, int]:
    counted = Counter(outcome.result for outcome in outcomes.values())
    return {result: counted[result] for result in ("passed", "failed", "skipped")}


def _last(
    arguments: argparse.Namespace, plan: Run, outcomes: Mapping[str, Outcome], again: Sequence[str]
) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "tier": arguments.tier,
        "by_sidecar": arguments.by_sidecar,
        "commit": arguments.commit,
        "suite": suite_version(plan.checkout),
        "postgres": postgres_version(plan.postgres),
        "counts": _counts(outcomes),
        "passed_when_run_again": list(again),
        "tests": {name: outcome.result for name, outcome in outcomes.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
