"""The report in results/README.md: between two marks, all else there is written by hand and stays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from netem.report.sentences import Fragment, sentence
from netem.report.short import GROUPS, grouped, in_short

if TYPE_CHECKING:
    from netem.report.chapters import Chapter, Part
    from netem.report.short import Conclusion

__all__ = ["with_report"]

_BEGIN, _END = "<!-- made by python -m netem report: begin -->", "<!-- made by python -m netem report: end -->"


def with_report(text: str, chapters: Sequence[Chapter]) -> str:
    """``text`` with the report between the marks, at the end where there are none."""
    block = "\n".join([_BEGIN, *_lines(chapters), _END])
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n"


def _lines(chapters: Sequence[Chapter]) -> Iterator[str]:
    yield from ("## wan/", "")
    yield "The same with plots, and a file behind each figure, is [wan/index.html](wan/index.html); figures for scripts"
    yield "are in [summary.json](summary.json). Figures are medians of repetitions; where repetitions overlap there is"
    yield "no difference."
    yield ""
    yield from _short(chapters)
    for chapter in chapters:
        yield from _chapter(chapter)


def _short(chapters: Sequence[Chapter]) -> Iterator[str]:
    short = in_short(chapters)
    yield from ("### In short", "")
    better, same, worse = (short.counts[each] for each in ("better", "same", "worse"))
    yield f"Of {better + same + worse} comparisons with equal sessions QUIC was better in {better}, no different in"
    yield f"{same}, and worse in {worse}."
    yield ""
    for title, conclusions in (
        ("Where QUIC pays", short.better),
        ("Where TCP is as good", short.same),
        ("Where TCP is better", short.worse),
        ("Besides", (*short.besides, *short.unequal)),
    ):
        if conclusions:
            yield from (f"**{title}**", "", *map(_conclusion, conclusions), "")


def _conclusion(conclusion: Conclusion) -> str:
    return f"- {conclusion.chapter}: {_linked(conclusion.words)}"


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield from (f"### {chapter.name}: {chapter.question}", "")
    if chapter.why:
        yield from (chapter.why, "")
    yield from (f"- {term}: {words}" for term, words in chapter.facts)
    for origin in chapter.origins:
        made = f"`{origin.command}`, commit {origin.commit}, {origin.machine}, {origin.dates}"
        yield f"- {origin.runs} runs made by {made}"
    yield ""
    titles = dict(GROUPS)
    for name, findings in grouped(chapter.findings).items():
        yield from (f"**{titles[name]}**", "")
        yield from (f"- {_linked(sentence(finding, chapter.titles))}" for finding in findings)
        yield ""
    for part in chapter.parts:
        yield from _table(part)


def _table(part: Part) -> Iterator[str]:
    yield from (f"**{part.title}**", "")
    heads = [" ".join(filter(None, head)) for head in part.heads]
    yield "| " + " | ".join(["arm", *heads, "runs"]) + " |"
    yield "|---" + "|--:" * len(heads) + "|---|"
    for row in part.rows:
        runs = " ".join(f"[{number}](wan/{file})" for number, file in enumerate(row.files, 1))
        yield "| " + " | ".join([row.arm, *(cell.words for cell in row.cells), runs]) + " |"
    yield ""


def _linked(fragments: Sequence[Fragment]) -> str:
    return "".join(
        each if isinstance(each, str) else f"[{each.text}](wan/{each.group.runs[0].file})" for each in fragments
    )
