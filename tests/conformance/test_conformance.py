"""The runner of PgBouncer's tests, without these: its lists, its report, and a checkout that it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.lists import Expected, judge, read_expected, read_tier
from conformance.outcomes import read_report
from conformance.suite import copy_suite, suite_version

HERE = Path(__file__).parent
REPORT = """
<testsuites><testsuite>
  <testcase classname="test.test_admin" name="test_help" />
  <testcase classname="test.test_limits" name="test_many[1]" />
  <testcase classname="test.test_limits" name="test_many[2]"><failure message="assert 1 == 2&#10;more">..</failure>
  </testcase>
  <testcase classname="test.test_limits" name="test_end"><error message="at teardown" /></testcase>
  <testcase classname="test.test_ssl" name="test_old"><skipped message="not here" /></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "test").mkdir(parents=True)
    (folder / "test" / "utils.py").touch()
    (folder / "test" / "test_admin.py").write_text("def test_help():\n    pass\n")
    (folder / "pyproject.toml").touch()
    (folder / "NEWS.md").write_text("**2026-05-08  -  PgBouncer 1.25.2  -  ...\n**2025-12-03  -  PgBouncer 1.25.1\n")
    return folder


def test_the_lists_that_are_kept_here_fit_together() -> None:
    tier = read_tier((HERE / "tier_a.txt").read_text().splitlines())
    expected = read_expected((HERE / "expected.txt").read_text().splitlines())
    assert len(tier) == 126
    assert set(tier) <= set(expected)
    assert sum(expected[name].passes for name in tier) >= 80


@pytest.mark.parametrize(
    "line", ["test_help", "test_admin.py::test_help[1]", "admin.py::test_help", "test_a.py::test_b"]
)
def test_a_tier_names_tests_and_each_once(line: str) -> None:
    assert read_tier(["# which", "", "test_a.py::test_a "]) == ("test_a.py::test_a",)
    with pytest.raises(ConformanceError, match=r"line 2.*" + line.replace("[", r"\[")):
        read_tier(["test_a.py::test_b", line])


@pytest.mark.parametrize(
    "line",
    [
        "pass test_a.py::test_b: why",
        "fail test_a.py::test_b",
        "fail test_a.py::test_b: ",
        "skip test_a.py::test_b",
        "pass test_a",
        "pass test_a.py::test_a",
    ],
)
def test_what_fails_has_a_reason(line: str) -> None:
    good = ["pass test_a.py::test_a", "fail test_a.py::test_c: no LDAP: it needs a server"]
    assert read_expected(good) == {
        "test_a.py::test_a": Expected(True),
        "test_a.py::test_c": Expected(False, "no LDAP: it needs a server"),
    }
    with pytest.raises(ConformanceError, match="line 3"):
        read_expected([*good, line])


def test_parameters_are_one_test_that_passes_when_all_do() -> None:
    outcomes = read_report(REPORT)
    assert {name: (outcome.result, outcome.message) for name, outcome in outcomes.items()} == {
        "test_admin.py::test_help": ("passed", ""),
        "test_limits.py::test_end": ("failed", "at teardown"),
        "test_limits.py::test_many": ("failed", "assert 1 == 2"),
        "test_ssl.py::test_old": ("skipped", "not here"),
    }


def test_only_what_was_expected_to_pass_breaks_a_run() -> None:
    expected = {"a": Expected(True), "b": Expected(False, "x"), "c": Expected(False, "x"), "not run": Expected(True)}
    verdict = judge(expected, {"a": False, "b": False, "c": True, "d": False})
    assert (verdict.broken, verdict.mended, verdict.unknown) == (("a",), ("c",), ("d",))


def test_a_copy_has_what_the_suite_looks_for(checkout: Path, tmp_path: Path) -> None:
    copy_suite(checkout, tmp_path / "copy", ["test_admin.py::test_help"])
    assert "MAX_PASSWORD" in (tmp_path / "copy/include/bouncer.h").read_text()
    assert "tls_support = yes" in (tmp_path / "copy/config.mak").read_text()
    assert "'test_admin.py::test_help'" in (tmp_path / "copy/conftest.py").read_text()
    assert not (checkout / "config.mak").exists()


def test_another_folder_or_version_is_refused(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match="no checkout of PgBouncer"):
        copy_suite(tmp_path, tmp_path / "copy")
    with pytest.raises(ConformanceError, match=r"lacks test_admin\.py::test_new"):
        copy_suite(checkout, tmp_path / "copy", ["test_admin.py::test_help", "test_admin.py::test_new"])
    assert not (tmp_path / "copy").exists()


def test_the_version_of_a_checkout_without_git(checkout: Path) -> None:
    assert suite_version(checkout) == "1.25.2"
