"""The report, made from runs that the test has stored."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.stored_runs import run, store
from netem.errors import LabError
from netem.plan import Arm, Load
from netem.report.chapters import chapters
from netem.report.data import groups, read
from netem.report.make import make

QUIC = Arm(kind="quic", sessions=40, connections=1, streams=40)
POOLER = Arm(kind="pgbouncer", sessions=40)
SLOW = [30.0 + at / 10 for at in range(50)]


def filled(folder: Path) -> Path:
    (folder / "README.md").write_text("# Results\n\nWords.\n")
    for at in (1, 2, 3):
        store(
            folder,
            run(QUIC, at, latencies=SLOW, p50_ms=31.0, p99_ms=40.0 + at / 10, mean_ms=32.0, client_cpu_us=90.0),
            run(POOLER, at, latencies=SLOW, p50_ms=31.0, p99_ms=90.0 + at / 10, mean_ms=32.0, client_cpu_us=30.0),
        )
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return filled(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a report; for who reads only."""
    folder = filled(tmp_path_factory.mktemp("results"))
    make(folder)
    return folder


def test_figures_for_scripts_are_one_flat_sorted_object(made: Path) -> None:
    figures = json.loads((made / "summary.json").read_text())
    assert figures["ramp.clean.quic-1x40.p99_ms"] == 40.2
    assert figures["ramp.clean.pgbouncer-40.sessions_used"] == 17
    assert list(figures) == sorted(figures)
    assert all(isinstance(value, int | float) for value in figures.values())


def test_the_same_data_give_the_same_files(results: Path, made: Path) -> None:
    again = {path.relative_to(results): path.read_bytes() for path in make(results)}
    assert again == {path: (made / path).read_bytes() for path in again}


class Page(HTMLParser):
    """Its addresses, its ids, and elements that are left open."""

    VOID = ("meta", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "href" and tag == "a":
                self.hrefs.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_startendtag(tag, attrs)


def test_the_page_has_all_in_itself(made: Path) -> None:
    text = (made / "wan" / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert text.count("<svg ") == 8
    assert "url(http" not in text
    assert "@import" not in text
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"#[0-9a-f]{6}", text.partition("</style>")[2])  # colours are the page's, dark or light
    assert len(text) < 1_000_000


def test_every_address_leads_somewhere(made: Path) -> None:
    page = Page((made / "wan" / "index.html").read_text())
    for href in page.hrefs:
        if href.startswith("#"):
            assert href[1:] in page.ids
        else:
            assert (made / "wan" / href).is_file()
    for at in (1, 2, 3):
        assert f"ramp/clean.quic-1x40.{at}.json" in page.hrefs


def test_a_figure_leads_to_the_run_that_it_is_of(made: Path) -> None:
    text = (made / "wan" / "index.html").read_text()
    assert 'title="40.1 · 40.2 · 40.3"><a href="ramp/clean.quic-1x40.2.json">40.2</a>' in text
    for words in (
        "python -m netem run ramp",
        "abc1234",
        "A CPU, 2 cores, Linux 6.1, Python 3.11.7",
        "2026-12-01 02:01",
    ):
        assert words in text


def test_wins_losses_and_no_difference_are_all_said(made: Path) -> None:
    for path in ("README.md", "wan/index.html"):
        text = html.unescape(re.sub(r"<[^>]+>|\[|\]\([^)]*\)|\u00a0", "", (made / path).read_text()))
        assert "p99: lower, 40.2 against 90.2ms" in text
        assert "the client's CPU for each answer: higher, 90 against 30µs, 3.0 times as much" in text
        assert "mean latency: no difference" in text
        assert "(40 sessions each)" in text


def test_the_report_takes_the_place_of_the_one_before(results: Path, made: Path) -> None:
    first = (made / "README.md").read_text()
    assert first.startswith("# Results\n\nWords.\n\n<!-- made by")
    (results / "README.md").write_text(first + "\n## What was tried\n\nThis.\n")
    make(results)
    assert (results / "README.md").read_text() == first + "\n## What was tried\n\nThis.\n"


def test_thresholds_are_columns(results: Path) -> None:
    store(results, run(QUIC, scenario="pooled", setting="50", thresholds={"p95_ms": 50.0}, p95_ms=60.0))
    make(results)
    assert ">FAIL</td>" in (results / "wan" / "index.html").read_text()
    assert "| p95 < 0.05 s |" in (results / "README.md").read_text()


def test_settings_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for setting, loss in (
        ("burst.500", 0.3),
        ("10.0.500", 0.1),
        ("3.0.2000", 0.03),
        ("3.0.500", 0.03),
        ("0.1.500", 0.001),
    ):
        store(tmp_path, run(QUIC, scenario="loss", setting=setting, loss=loss))
    (chapter,) = chapters(groups(read(tmp_path / "wan")), draw=False)
    ordered = [part.anchor for part in chapter.parts]
    assert ordered == [f"loss.{each}" for each in ("0.1.500", "3.0.500", "3.0.2000", "10.0.500", "burst.500")]


def test_what_was_not_measured_is_said(results: Path) -> None:
    store(results, run(QUIC, scenario="cpu"))
    make(results)
    text = (results / "wan" / "index.html").read_text()
    assert "Scenarios that there are, and nothing is stored of: " in text
    assert "in cpu there are arms that ran once" in text


def test_repetitions_of_another_load_are_refused(results: Path) -> None:
    store(results, run(QUIC, 2, load=Load(kind="ramp", rate=100, seconds=60)))
    with pytest.raises(LabError, match=r"1\.json and .*2\.json are no repetitions"):
        make(results)


def test_nothing_is_stored(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nothing is stored"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"clean\.quic-1x40\.2\.json"),
        ("[]", "it is not the result of a run"),
        ('{"scenario": "ramp"}', "it does not say its setting, arm, repetition, result"),
        (json.dumps(dict.fromkeys(("scenario", "setting", "arm", "repetition", "result"), "")), "of what kind"),
    ],
)
def test_a_file_that_is_broken_is_named_and_nothing_is_written(results: Path, text: str, words: str) -> None:
    (results / "wan" / "ramp" / "clean.quic-1x40.2.json").write_text(text)
    with pytest.raises(LabError, match=words):
        make(results)
    assert not (results / "summary.json").exists()


def test_a_histogram_that_is_broken_is_named(results: Path) -> None:
    (results / "wan" / "ramp" / "clean.quic-1x40.2.hdr").write_text("HISTF")
    with pytest.raises(LabError, match=r"clean\.quic-1x40\.2\.json: its histogram"):
        make(results)
