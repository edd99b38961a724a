"""Draws the states of a session, as ARCHITECTURE.md shows them, from the table that they are in.

`python tests/helpers/state_diagram.py` puts the drawing into ARCHITECTURE.md; a test says when that has to be done.
"""

from __future__ import annotations

from pathlib import Path

from pgtrunk_gateway.session.state import TABLE, Effect, Event, State

BEGIN = "<!-- begin: made from session/state.py by tests/helpers/state_diagram.py -->"
END = "<!-- end -->"


def drawing() -> str:
    """The block between the marks: a mermaid diagram of what a session lives through, and a table of how it ends."""
    lines = [BEGIN, "```mermaid", "stateDiagram-v2", "    [*] --> LOGIN"]
    for state, events in TABLE.items():
        lives = {event: step for event, step in events.items() if step[0] is not State.CLOSED}
        lines += [
            f"    {state.name} --> {after.name}: {_label(event, effects)}" for event, (after, effects) in lives.items()
        ]
    lines += ["```", "", "From each state, how it ends in CLOSED:", "", "| | " + " | ".join(_ENDS) + " |"]
    lines.append("|---" * (len(_ENDS) + 1) + "|")
    for state in State:
        if state is not State.CLOSED:
            ends = [_effects(TABLE[state][Event[name]][1]) if Event[name] in TABLE[state] else "-" for name in _ENDS]
            lines.append(f"| {state.name} | " + " | ".join(ends) + " |")
    return "\n".join([*lines, END])


_ENDS = [event.name for event in Event if event in TABLE[State.CLOSED]]


def _label(event: Event, effects: tuple[Effect, ...]) -> str:
    return f"{event.name} / {_effects(effects)}" if effects else event.name


def _effects(effects: tuple[Effect, ...]) -> str:
    return ", ".join(effect.name.lower() for effect in effects)


def redrawn(text: str) -> str:
    """A document with the block in it brought up to date. Raises ValueError where it has none."""
    start, end = text.index(BEGIN), text.index(END)
    return text[:start] + drawing() + text[end + len(END) :]


if __name__ == "__main__":
    path = Path(__file__).parent.parent.parent / "ARCHITECTURE.md"
    path.write_text(redrawn(path.read_text()))
