"""From the lines of a configuration to typed values, each with its place; finds every line that is wrong in itself.

What is wrong only together with other lines, or with the disk, is for `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .connstr import parse_connstr
from .entries import CONSOLE_NAMES
from .faults import Remark, Source, quoted
from .ini import MAX_FAULTS
from .keys import ENTRY_SECTIONS, MAIN, MAIN_SECTIONS, SECTIONS, suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .ini import Document, Header, Item
    from .key import Key

__all__ = ["Entry", "Reading", "read_values"]

NOT_YET = "known, not acted on yet"
NOUNS = {"databases": "database", "users": "user", "peers": "peer"}
MAX_NAME = {"databases": 63, "users": 127}  # bytes; no startup packet with more gets past PgBouncer
MAX_PEER_ID = 16383
HOMES: Mapping[str, Mapping[str, Key]] = {MAIN_SECTIONS[0]: MAIN, **ENTRY_SECTIONS}


@dataclass(slots=True)
class Entry:
    """One line of [databases], [users] or [peers]."""

    name: str
    source: Source
    values: dict[str, Any] = field(default_factory=dict)
    """Value by key; what is not set is not in it."""
    extra: dict[str, bool] = field(default_factory=dict)
    """Keys that are set and not acted on, each with whether that is serious."""


@dataclass(slots=True)
class Reading:
    """All that the files say."""

    main_section: Header | None = None
    """Where the main section begins first."""
    main: dict[str, Any] = field(default_factory=dict)
    """Value by key of the main section; what is not set is not in it."""
    sources: dict[str, Source] = field(default_factory=dict)
    """Where each key of the main section was set last."""
    entries: dict[str, dict[str, Entry]] = field(default_factory=lambda: {name: {} for name in ENTRY_SECTIONS})
    """By section, then by name."""
    faults: list[ConfigError] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether there are so many errors that the next ones say nothing new."""
        return len(self.faults) >= MAX_FAULTS

    def read_header(self, header: Header) -> None:
        """A line with a section's name."""
        if header.name in MAIN_SECTIONS:
            self.main_section = self.main_section or header
        elif header.name not in SECTIONS and not self.full:
            hint = suggest(header.name, SECTIONS)
            self.faults.append(header.source.error(f"unknown section {quoted(header.name)}{hint}"))

    def read_main(self, item: Item) -> None:
        """A line of the main section."""
        key = MAIN.get(item.key)
        if key is None:
            hint = _belongs(item.key) or suggest(item.key, MAIN)
            self.faults.append(item.source.error(f"unknown key {quoted(item.key)} in [{item.section}]{hint}"))
            return
        try:
            self.main[key.name] = key.kind.read(item.value)
        except ConfigError as error:
            self.faults.append(item.source.error(f"{key.name}: {error.message}"))
        self.sources[key.name] = item.source

    def read_entry(self, item: Item) -> None:
        """A line of [databases], [users] or [peers]."""
        entry = Entry(item.key, item.source)
        label = _label(item.section, item.key)
        try:
            _check_name(item.section, item.key)
            pairs = parse_connstr(item.value)
        except ConfigError as error:
            self.faults.append(item.source.error(f"{label}: {error.message}"))
            return
        previous = ""
        for name, text in pairs:
            if self.full:
                break
            try:
                _read_pair(entry, item.section, name, text, previous)
            except ConfigError as error:
                self.faults.append(item.source.error(f"{label}: {error.message}"))
            previous = name
        if item.section == "peers" and "host" not in dict(pairs):
            self.faults.append(item.source.error(f"{label}: host is not set"))
        self.entries[item.section][item.key] = entry

    def remark_on_the_rest(self) -> None:
        """One remark for each key that is set, known and not acted on."""
        for name, source in self.sources.items():
            key = MAIN[name]
            if not key.acted_on:
                serious = key.serious and self.main.get(name) != key.default_value
                self.remarks.append(Remark(source, f"{name}: {NOT_YET}", serious))
        for section, entries in self.entries.items():
            for entry in entries.values():
                label = _label(section, entry.name)
                for name, serious in entry.extra.items():
                    self.remarks.append(Remark(entry.source, f"{label}: {name}: {NOT_YET}", serious))


def read_values(document: Document) -> Reading:
    """The values of `document`, and all that is wrong or worth a remark in its lines."""
    reading = Reading(faults=list(document.faults))
    for header in document.headers:
        reading.read_header(header)
    for item in document.items:
        if reading.full:
            break
        if item.section in MAIN_SECTIONS:
            reading.read_main(item)
        elif item.section in ENTRY_SECTIONS:
            reading.read_entry(item)
    reading.remark_on_the_rest()
    return reading


def _read_pair(entry: Entry, section: str, name: str, text: str, previous: str) -> None:
    keys = ENTRY_SECTIONS[section]
    key = keys.get(name)
    if key is None:
        raise ConfigError(_unknown(name, section, previous))
    try:
        value = key.kind.read(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}") from None
    if not key.acted_on:
        entry.extra[name] = key.serious and value != key.default_value
    elif value is None:
        entry.values.pop(name, None)
    else:
        entry.values[name] = value


def _unknown(name: str, section: str, previous: str) -> str:
    hint = _belongs(name) or suggest(name, ENTRY_SECTIONS[section])
    if previous == "password" and not hint:
        # Likely the second word of a password: not for a log.
        return "unknown key behind the password; a password with spaces needs single quotes"
    return f"unknown key {quoted(name)}{hint}"


def _belongs(name: str) -> str:
    """The section where a key would be known, for one that stands in the wrong place."""
    homes = [section for section, keys in HOMES.items() if name in keys]
    return f"; it belongs into [{homes[0]}]" if homes else ""


def _label(section: str, name: str) -> str:
    return f"{NOUNS[section]} {quoted(name)}"


def _check_name(section: str, name: str) -> None:
    if section == "peers":
        if not (name.isascii() and name.isdigit() and len(name) <= 5 and 1 <= int(name) <= MAX_PEER_ID):
            raise ConfigError(f"a peer's name is its peer_id, a number from 1 to {MAX_PEER_ID}")
        return
    if len(name.encode()) > MAX_NAME[section]:
        raise ConfigError(f"the name is longer than {MAX_NAME[section]} bytes")
    if section == "databases" and name in CONSOLE_NAMES:
        raise ConfigError("the name is reserved for the admin console")
