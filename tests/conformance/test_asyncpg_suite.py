"""The runner of asyncpg's tests, without these: its list, its verdict, and a checkout that it is given."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from conformance.asyncpg_suite.names import CARRIED, Difference, Outcome, judge, read_differences, read_record
from conformance.asyncpg_suite.site import DIRECT, Suite, suite_version
from conformance.errors import ConformanceError

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).parent / "asyncpg_suite" / "expected.txt"
POOLS = (ROOT / "POOLS.md").read_text()
TESTS = """
from asyncpg import _testbase as tb

class TestSmall(tb.ConnectedTestCase):
    async def test_query(self):
        self.assertEqual(await self.con.fetchval("SELECT 1"), 1)

    async def test_pool(self):
        async with self.create_pool(min_size=2, max_size=2) as pool:
            for part in range(2):
                with self.subTest(part=part):
                    self.assertEqual(await pool.fetchval("SELECT $1::int", part), part)

    async def test_subtests(self):
        for part in range(2):
            with self.subTest(part=part):
                self.assertEqual(part, 0)

    async def test_elsewhere(self):
        with self.assertRaises(OSError):
            await self.connect(host="127.0.0.1", port=1)

class TestOwnServers(tb.HotStandbyTestCase):
    async def test_standby(self):
        pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A suite of a few tests, of the version that is installed."""
    (tmp_path / "asyncpg").mkdir()
    (tmp_path / "asyncpg" / "_version.py").write_text(f"__version__: typing.Final = '{version('asyncpg')}'\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "test_pool.py").write_text(TESTS)
    return tmp_path


# -- the list ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", CARRIED)
def test_each_difference_is_a_row_of_the_documentation(mode: str) -> None:
    named = read_differences(EXPECTED.read_text().splitlines())
    rows = set(re.findall(r"^\| ([^|]+?) \|", POOLS, re.MULTILINE))
    assert {why.row for why in named[mode].values()} <= rows


def test_a_difference_has_a_mode_a_test_and_a_row() -> None:
    lines = [
        "# which",
        "",
        "both test_a.py::TestA::test_b: a row; and more",
        "session test_a.py::TestA::test_c: another",
    ]
    both = {"test_a.py::TestA::test_b": Difference("a row", "and more")}
    assert read_differences(lines) == {
        "session": {**both, "test_a.py::TestA::test_c": Difference("another")},
        "transaction": both,
    }


@pytest.mark.parametrize(
    "line",
    [
        "session test_a.py::TestA::test_b",
        "statement test_a.py::TestA::test_b: a row",
        "session test_a: a row",
        "session test_a.py::TestA::test_a: a row, and twice",
    ],
)
def test_a_line_of_the_list_that_says_less_is_refused(line: str) -> None:
    with pytest.raises(ConformanceError, match="line 2"):
        read_differences(["both test_a.py::TestA::test_a: a row", line])


# -- the verdict -------------------------------------------------------------------------------------------------------


def test_a_run_agrees_where_all_differences_are_named_and_there() -> None:
    direct = {name: Outcome("passed") for name in ("same", "lost", "named", "mended", "missing")}
    direct |= {"bad anyway": Outcome("failed"), "not for us": Outcome("skipped")}
    carried = {**direct, "lost": Outcome("failed"), "named": Outcome("skipped")}
    del carried["missing"]
    named: dict[str, Difference] = dict.fromkeys(("named", "mended", "bad anyway", "gone"), Difference("a row"))
    verdict = judge(direct, carried, named)
    assert verdict.broken == ("lost", "missing")
    assert verdict.mended == ("mended",)
    assert verdict.unknown == ("bad anyway", "gone")


def test_a_file_that_cannot_be_read_is_no_test() -> None:
    line = '{"test": "test_a.py", "result": "failed", "message": "no such module", "sessions": 0}\n'
    with pytest.raises(ConformanceError, match=r"test_a\.py could not be collected: no such module"):
        read_record(line)


# -- a checkout --------------------------------------------------------------------------------------------------------


def test_only_a_checkout_of_asyncpg_has_a_version(checkout: Path) -> None:
    assert suite_version(checkout) == version("asyncpg")
    (checkout / "tests" / "test_pool.py").unlink()
    with pytest.raises(ConformanceError, match="no checkout of asyncpg"):
        suite_version(checkout)


def test_a_suite_is_run_directly_and_carried(checkout: Path) -> None:
    suite = Suite(checkout, needs=())
    direct, carried = suite.run(DIRECT), suite.run("session", ["test_pool.py::TestSmall"])
    small = {f"test_pool.py::TestSmall::test_{name}" for name in ("query", "pool", "subtests", "elsewhere")}
    own = "test_pool.py::TestOwnServers::test_standby"
    assert direct.keys() == small | {own}
    assert direct[own] == Outcome("skipped", "its servers are its own")
    assert carried.keys() == small
    assert {name for name, outcome in carried.items() if not outcome.passed} == {
        "test_pool.py::TestSmall::test_subtests"
    }
    assert {name for name, outcome in direct.items() if outcome.sessions} == set()
    # That which names a host goes there, and the session that each test begins with does not.
    assert {name.rpartition("_")[2]: outcome.sessions for name, outcome in carried.items()} == {
        "query": 1,
        "pool": 3,
        "subtests": 1,
        "elsewhere": 1,
    }
    assert sorted(path.name for path in checkout.rglob("*")) == [
        "__init__.py", "_version.py", "asyncpg", "test_pool.py", "tests",
    ]  # fmt: skip
