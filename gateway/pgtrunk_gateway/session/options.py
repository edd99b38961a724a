"""The ``options`` of a startup packet: switches of the server's command line; those that set something are ours.

    -c name=value    -cname=value    --name=value

Split as Postgres splits them (pg_split_opts, ParseLongOption): at white space, with a backslash before any character
that is meant as itself; a hyphen in a name stands for an underscore. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgtrunk_gateway.errors import NotSupported

__all__ = ["parse_options"]

_SWITCH = re.compile(r"(?:[^\s\\]|\\.|\\$)+", re.DOTALL | re.ASCII)
_ESCAPED = re.compile(r"\\(.|$)", re.DOTALL)


def parse_options(text: str) -> list[tuple[str, str]]:
    """Names, as they are spelt, and values, in their order. Raises :class:`NotSupported` for any other switch."""
    return list(_settings(text))


def _settings(text: str) -> Iterator[tuple[str, str]]:
    switches = (_ESCAPED.sub(r"\1", switch) for switch in _SWITCH.findall(text))
    for switch in switches:
        if switch.startswith("--"):
            setting = switch[2:]
        elif switch.startswith("-c"):
            setting = switch[2:] or next(switches, "")
        else:
            raise _unsupported(switch)
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise _unsupported(switch)
        yield name.replace("-", "_"), value


def _unsupported(switch: str) -> NotSupported:
    return NotSupported(
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed",
        severity="FATAL",
        detail=f"It begins with {switch!r}.",
    )
