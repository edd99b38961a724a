"""Loads a configuration: `load(path)` is all that the rest of the gateway needs.

All errors of the files come in one `InvalidConfig`, in the order of their lines. Nothing is printed or logged here:
remarks are handed back, for whoever has a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .build import build
from .checks import Checks
from .faults import InvalidConfig, Remark, Source
from .ini import parse
from .reading import read_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .ini import Reader
    from .reading import Reading
    from .settings import Config

__all__ = ["Loaded", "load", "read_file"]

MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that holds together."""

    config: Config
    remarks: tuple[Remark, ...]
    """To be logged once, in this order: keys that are not acted on, files that all may read, and the like."""
    path: str
    """The file that was loaded."""
    sources: Mapping[str, Source]
    """Where each key of the main section was set."""
    reading: Reading = field(repr=False, compare=False)
    """What the files say, key by key: where a change while the gateway runs starts from."""

    def error(self, key: str, message: str) -> ConfigError:
        """An error that came to light later, such as a taken port or a key that does not match, at the key's line."""
        return self.at(key).error(f"{key}: {message}")

    def at(self, key: str) -> Source:
        """Where a key of the main section was set, or the file as a whole."""
        return self.sources.get(key, Source(self.path))


def load(path: str | PathLike[str], read: Reader | None = None, *, on_disk: bool = True) -> Loaded:
    """The configuration in the file `path` and those that it includes.

    `read` gives their texts, as `read_file` does. Unless `on_disk`, nobody looks for the files that they name.

    :raises InvalidConfig: with all that is wrong, each with file, line, value and what is allowed.
    """
    path = fspath(path)
    document = parse(path, read or read_file)
    reading = read_values(document)
    config = build(reading)
    checks = Checks(path, reading, config)

    def place(found: ConfigError | Remark) -> tuple[int, int]:
        where = found.source if isinstance(found, Remark) else found
        return document.paths.index(where.path or path), where.line or 0

    faults = [*reading.faults, *(checks.of_disk() if on_disk else ())]
    if not reading.faults:
        faults += checks.between_keys()
    if faults:
        raise InvalidConfig(sorted(faults, key=place))
    remarks = [*reading.remarks, *checks.remarks()]
    return Loaded(config, tuple(sorted(remarks, key=place)), path, reading.sources, reading)


def read_file(path: str) -> str:
    """The text of a file of the configuration.

    :raises ConfigError: without place, when it cannot be read or is no text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES >> 20} MB")
    if (nul := data.find(b"\0")) >= 0:
        raise ConfigError(f"is no text file: NUL byte in line {_line_of(data, nul)}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} in line {_line_of(data, error.start)}"
        raise ConfigError(f"is not UTF-8: {byte}") from error


def _line_of(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1
