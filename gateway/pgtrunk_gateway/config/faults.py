"""What is wrong with a configuration, and where: errors that come all at once, remarks that stop nothing.

An error is the `ConfigError` of `pgtrunk_gateway.errors`, with file and line; `InvalidConfig` holds all those of one
load. Values that could hold a password never get into either: only `quoted` keys and values of other keys do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["InvalidConfig", "Remark", "Source", "quoted"]

MAX_QUOTED = 60


@dataclass(frozen=True, slots=True)
class Source:
    """A place in a file of the configuration."""

    path: str
    """As it was given on the command line, or after `%include`."""
    line: int | None = None
    """Counted from 1. `None`: the file as a whole."""

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"

    def error(self, message: str) -> ConfigError:
        """The error that `message` is, at this place."""
        return ConfigError(message, path=self.path, line=self.line)


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to log once, after which the gateway starts all the same."""

    source: Source
    message: str
    """Lower case, one line, without the place."""
    serious: bool = False
    """Whether safety or capacity is other than the file says: log it as WARNING, the rest as LOG."""

    def __str__(self) -> str:
        return f"{self.source}: {self.message}"


class InvalidConfig(ConfigError):
    """All errors of one load. The message has one line for each, in the order of the files and their lines."""

    def __init__(self, faults: Iterable[ConfigError]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


def quoted(text: str) -> str:
    """`text` in double quotes, fit for one line of a log: cut at 60 characters, nothing that a terminal would obey."""
    shown = text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 3] + "..."
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown) + '"'
