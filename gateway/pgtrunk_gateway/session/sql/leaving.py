"""The traces of commands, by their words. A grammar is not needed for them, and what a text means that the server does
not take does not matter. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.session.sql.bodies import traces_within
from pgtrunk_gateway.session.sql.traces import IDENTITY, NOTHING, SPECIAL, Pin, Traces, setting_traces

if TYPE_CHECKING:
    from pgtrunk_gateway.session.sql.lexer import Word

__all__ = ["traces_of"]

_FREES: Final = Traces(frees=True)
_TEMPORARY: Final = frozenset({b"temp", b"temporary", b"pg_temp"})
_LOCKS: Final = frozenset(
    {b"pg_advisory_lock", b"pg_advisory_lock_shared", b"pg_try_advisory_lock", b"pg_try_advisory_lock_shared"}
)
_UNLOCKS: Final = frozenset({b"pg_advisory_unlock", b"pg_advisory_unlock_shared", b"pg_advisory_unlock_all"})
_SET_CONFIG: Final = b"set_config"
_PARAMETERS: Final = (b"setting_name", b"new_value", b"is_local")
"""Of that function."""
_TRUE: Final = frozenset({b"true", b"'true'", b"'t'", b"'on'", b"'yes'", b"'1'"})


def traces_of(text: bytes, commands: list[list[Word]]) -> Traces:
    """Those of ``text``, which has these commands."""
    found = NOTHING
    for words in commands:
        found |= _of(text, words)
    return found


def _of(text: bytes, words: list[Word]) -> Traces:
    found = _calls(words)
    match words[0].text if words[0].kind == "word" else b"":
        case b"set":
            found |= _set(words)
        case b"reset":
            found |= Traces(resets=True) if _is(words, 1, b"all") else _reverted(_named(words, 1))
        case b"discard" if _is(words, 1, b"all"):
            found |= Traces(resets=True, frees=True, reverts=True)
        case b"discard" | b"unlisten" | b"close" | b"drop":
            found |= _FREES
        case b"listen":
            found |= Traces(pins=Pin.LISTEN)
        case b"load":
            found |= Traces(pins=Pin.LIBRARY)
        case b"declare" if any(_is(words, at, b"with") and _is(words, at + 1, b"hold") for at in range(len(words))):
            found |= Traces(pins=Pin.CURSOR)
        case b"create" | b"explain" if any(word.is_name and word.text in _TEMPORARY for word in words):
            found |= Traces(pins=Pin.TEMPORARY)
        case b"do":
            for word in words:
                if word.kind in ("dollar", "string", "escaped", "unicode"):
                    found |= traces_within(text[word.start : word.end], body=True)
        case _:
            pass
    return found


def _is(words: list[Word], at: int, *texts: bytes) -> bool:
    return 0 <= at < len(words) and words[at].kind in ("word", "sign") and words[at].text in texts


# -- SET and RESET ---------------------------------------------------------------------------------------------------


def _set(words: list[Word]) -> Traces:
    if _is(words, 1, b"local"):
        return NOTHING
    at = 2 if _is(words, 1, b"session") and not _is(words, 2, b"authorization", b"to", b"=") else 1
    found = _named(words, at)
    return _reverted(found) if _is(words, len(words) - 1, b"default") else found


def _reverted(found: Traces) -> Traces:
    return found | Traces(reverts=not IDENTITY.isdisjoint(found.names))


def _named(words: list[Word], at: int) -> Traces:
    """The setting whose name is at ``at``."""
    if at >= len(words):
        return NOTHING
    if words[at].kind == "word" and words[at].text in SPECIAL and not _is(words, at + 1, b"to", b"=", b"."):
        return Traces(SPECIAL[words[at].text])
    parts = [words[at].text]
    while _is(words, at + 1, b".") and at + 2 < len(words):
        parts.append(words[at + 2].text)
        at += 2
    return setting_traces(b".".join(parts))


# -- what any command may contain ------------------------------------------------------------------------------------


def _calls(words: list[Word]) -> Traces:
    found = NOTHING
    for at, word in enumerate(words):
        if not word.is_name:
            continue
        if word.text == b"into":
            if _is(words, at + 1, *_TEMPORARY) and not _is(words, at - 1, b"insert", b"merge"):
                found |= Traces(pins=Pin.TEMPORARY)
        elif not _is(words, at + 1, b"("):
            continue
        elif word.text in _LOCKS:
            found |= Traces(pins=Pin.LOCK)
        elif word.text in _UNLOCKS:
            found |= _FREES
        elif word.text == _SET_CONFIG:
            found |= _set_config(_arguments(words, at + 2))
    return found


def _arguments(words: list[Word], at: int) -> dict[bytes, list[Word]]:
    """The arguments of a call, which begin at ``at``, by the names that they have in set_config."""
    arguments: list[list[Word]] = [[]]
    depth = 0
    for word in words[at:]:
        if word.kind == "sign":
            if word.text in (b"(", b"["):
                depth += 1
            elif word.text in (b")", b"]"):
                depth -= 1
                if depth < 0:
                    break
            elif word.text == b"," and not depth:
                arguments.append([])
                continue
        arguments[-1].append(word)
    given = {}
    for name, argument in zip(_PARAMETERS, arguments, strict=False):
        if (_is(argument, 1, b"=") and _is(argument, 2, b">")) or (_is(argument, 1, b":") and _is(argument, 2, b"=")):
            given[argument[0].text] = argument[3:]
        else:
            given[name] = argument
    return given


def _set_config(arguments: dict[bytes, list[Word]]) -> Traces:
    name, local = (_constant(arguments.get(key, [])) for key in (b"setting_name", b"is_local"))
    if local.lower() in _TRUE:
        return NOTHING
    if name[:1] == b"'":
        return setting_traces(name[1:-1])
    if name[:1] == b"$" and name[1:].isdigit():
        number = int(local[1:]) if local[:1] == b"$" and local[1:].isdigit() else 0
        return Traces(bound=frozenset({(int(name[1:]), number)}))
    return Traces(pins=Pin.SETTINGS)


def _constant(argument: list[Word]) -> bytes:
    """An argument that is a constant or a parameter, be it with a cast; b"" for any other."""
    if not argument or (argument[1:] and not (_is(argument, 1, b":") and _is(argument, 2, b":"))):
        return b""
    first = argument[0]
    return first.text if first.kind in ("string", "number", "word") else b""
