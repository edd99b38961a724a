"""The documents of the repository, and how to find things in them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["DOCUMENTS", "README", "ROOT", "block", "section", "spans"]

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = {path.name: path.read_text() for path in sorted(ROOT.glob("*.md"))}
README = DOCUMENTS["README.md"]


def block(text: str, language: str) -> str:
    """The one code block of this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code: str = found
    return code


def section(text: str, heading: str) -> str:
    """What follows a heading, up to the next one."""
    return re.split(r"^#", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def spans(text: str) -> list[str]:
    """What stands in backticks; code blocks aside."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
