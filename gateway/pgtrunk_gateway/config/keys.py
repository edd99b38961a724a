"""The registry: which section knows which keys, and which known key an unknown one was meant to be."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from . import keys_ours, keys_pgbouncer
from .faults import quoted
from .keys_entries import DATABASE_KEYS, PEER_KEYS, USER_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .key import Key

__all__ = ["DATABASE", "ENTRY_SECTIONS", "MAIN", "MAIN_SECTIONS", "PEER", "SECTIONS", "USER", "suggest"]


def _by_name(keys: Iterable[Key]) -> Mapping[str, Key]:
    return {key.name: key for key in keys}


MAIN = _by_name((*keys_pgbouncer.KEYS, *keys_ours.KEYS))
DATABASE = _by_name(DATABASE_KEYS)
USER = _by_name(USER_KEYS)
PEER = _by_name(PEER_KEYS)

MAIN_SECTIONS = ("pgtrunk", "pgbouncer")
"""The main section's name, and its other name."""
ENTRY_SECTIONS: Mapping[str, Mapping[str, Key]] = {"databases": DATABASE, "users": USER, "peers": PEER}
"""Sections of named entries, with the keys that an entry may have."""
SECTIONS = (*MAIN_SECTIONS, *ENTRY_SECTIONS)


def suggest(name: str, known: Iterable[str]) -> str:
    """What to put behind "unknown ...": the nearest known name, or nothing when none is near."""
    nearest = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {quoted(nearest[0])}?" if nearest else ""
